//! A report that a board takes, whatever frontends list.
//!
//! One frontend with a listing that is too long must not make its agent look silent, and with it all the others.

use schemas::status::{AgentStatus, FrontendStatus};

/// Bound: a report's bytes as JSON. A broker and the service take 1 MiB, with what surrounds it.
const REPORT_BYTES_MAX: usize = 960 << 10;

/// Leaves out what a report has no room for, largest frontend first: the values of its routers, then all of its routers.
/// Without its routers a frontend counts as unreachable: nobody is told that a change has arrived there.
pub(super) fn fit(status: &mut AgentStatus) {
    let mut total = bytes(status);
    while total > REPORT_BYTES_MAX {
        let Some(frontend) = (status.frontends.iter_mut())
            .filter(|frontend| !frontend.routers.is_empty() || !frontend.thresholds.is_empty())
            .max_by_key(|frontend| bytes(&**frontend))
        else {
            return;
        };
        let before = bytes(frontend);
        shorten(frontend, before);
        total -= before - bytes(frontend).min(before);
    }
}

fn shorten(frontend: &mut FrontendStatus, size: usize) {
    let named = (frontend.routers.iter_mut()).filter(|router| !router.parameters.is_empty());
    if named.map(|router| router.parameters.clear()).count() > 0 {
        return;
    }
    frontend.routers.clear();
    frontend.thresholds.clear();
    frontend.reachable = false;
    frontend.error = Some(format!("lists too much to be reported ({size} bytes)"));
}

fn bytes(part: &impl serde::Serialize) -> usize {
    // Encoding plain values cannot fail.
    serde_json::to_vec(part).map_or(0, |json| json.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> AgentStatus {
        let text = include_str!("../../../tests/inputs/status.json");
        serde_json::from_str(text).unwrap()
    }

    /// With this many more frontends of as many routers.
    fn status(frontends: usize, routers: usize) -> AgentStatus {
        let mut status = golden();
        let mut frontend = status.frontends[0].clone();
        let router = frontend.routers[0].clone();
        frontend.routers = vec![router; routers];
        status.frontends.extend(vec![frontend; frontends]);
        status
    }

    #[test]
    fn a_report_with_room_is_left_alone() {
        let mut fitting = status(1, 100);
        fit(&mut fitting);
        assert_eq!(fitting, status(1, 100));
    }

    #[test]
    fn regression_a_frontend_that_lists_too_much_hides_no_other() {
        for (frontends, routers) in [(1, 2_500), (2, 2_000), (5, 1_000), (1, 5_000)] {
            let mut long = status(frontends, routers);
            assert!(bytes(&long) > REPORT_BYTES_MAX);
            fit(&mut long);
            assert!(bytes(&long) <= REPORT_BYTES_MAX);
            assert_eq!(long.frontends[0], golden().frontends[0]);
            for frontend in &long.frontends {
                // Never "it has no routers".
                assert!(!frontend.routers.is_empty() || !frontend.reachable);
            }
        }
    }
}
