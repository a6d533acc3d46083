//! Faults of a cluster that are quick to show, each on a stage of its own. `cargo xtask cluster` runs all of them.

use router_policy_tests::cluster::run_test;

#[test]
fn a_leader_that_is_cut_off_is_replaced_and_nothing_is_lost() {
    run_test("leader-cut-off");
}

#[test]
fn a_server_that_comes_back_without_its_store_is_filled_again() {
    run_test("one-store-emptied");
}

#[test]
fn regression_a_stream_that_is_deleted_and_made_again_is_refused_until_it_is_adopted() {
    run_test("stream-made-anew");
}

#[test]
fn regression_a_full_stream_refuses_in_clear_words_and_goes_on_when_there_is_room() {
    run_test("stream-full");
}

#[test]
fn every_fault_has_a_name_of_its_own_and_unknown_ones_are_refused() {
    let names: std::collections::BTreeSet<&str> = router_policy_tests::cluster::cases::ALL
        .iter()
        .map(|case| case.name)
        .collect();
    assert_eq!(names.len(), router_policy_tests::cluster::cases::ALL.len());
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_cluster"))
        .args(["--only=leader-kills", "--only=no-such-fault"])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(
        said.contains("no-such-fault") && said.contains("leader-kills"),
        "{said}"
    );
}
