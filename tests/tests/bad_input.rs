//! The table of bad input against a real service process.

#[test]
fn every_bad_request_is_refused_and_changes_nothing() {
    assert!(router_policy_tests::bad_input::run());
}
