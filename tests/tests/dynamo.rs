//! The scenarios with real Dynamo, each on a stage of its own, so that a test runner can list and run one.
//! They are ignored by default: `cargo xtask dynamo` runs all of them on one stage, which is several times faster.

use router_policy_tests::scenarios::run_alone;

macro_rules! scenarios {
    ($($test:ident = $letter:literal),* $(,)?) => {
        $(
            #[test]
            #[ignore = "sets a stage of its own; cargo xtask dynamo runs all on one"]
            fn $test() {
                run_alone($letter);
            }
        )*

        #[test]
        fn unknown_scenarios_are_refused() {
            let out = std::process::Command::new(env!("CARGO_BIN_EXE_dynamo-scenarios"))
                .args(["a", "zz"])
                .output()
                .expect("it runs");
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(2), "{said}");
            assert!(said.contains("\"zz\"") && said.contains("a20, b, c"), "{said}");
        }

        #[test]
        fn every_scenario_has_a_test() {
            let here = [$($letter),*];
            let all: Vec<&str> = router_policy_tests::scenarios::ALL.iter().map(|one| one.letter).collect();
            assert_eq!(here.as_slice(), all.as_slice());
        }
    };
}

scenarios! {
    a_change_reaches_all = "a",
    converged_is_never_stale = "a20",
    startup_values_return = "b",
    a_restarted_frontend_is_brought_up = "c",
    drift_is_put_back = "d",
    thresholds_fleet_wide = "f",
    one_replica_refuses = "e",
    roles_stay_apart = "j",
    any_name_works = "k",
    kill_9_amid_200_changes = "g",
    the_log_goes_away = "h",
    an_agent_works_from_its_copy = "i",
    an_old_frontend = "l",
    without_nats = "m",
}
