//! Whatever happens to an agent and its frontend, the end state is the policy.

use std::collections::BTreeMap;

use proptest::prelude::*;
use schemas::status::ApplyState;
use schemas::{Overlay, ParameterValue};

use super::*;
use crate::target::{TargetError, Values};
use crate::testing::Fault;

/// What can happen to an agent and its frontend.
#[derive(Debug, Clone)]
enum Happening {
    Edit(Vec<(usize, u8)>),
    EditThresholds(Vec<(usize, u8)>),
    RestartAgent,
    ForgetAndRestartAgent,
    RestartFrontend,
    Meddle(usize, u8),
    Fault(u8),
    Outage(u8),
    Wait(u8),
}

fn happening() -> impl Strategy<Value = Happening> {
    let edit = || proptest::collection::vec((0..3usize, 0..4u8), 0..3);
    prop_oneof![
        4 => edit().prop_map(Happening::Edit),
        2 => edit().prop_map(Happening::EditThresholds),
        1 => Just(Happening::RestartAgent),
        1 => Just(Happening::ForgetAndRestartAgent),
        1 => Just(Happening::RestartFrontend),
        1 => (0..3usize, 0..4u8).prop_map(|(name, value)| Happening::Meddle(name, value)),
        2 => (0..4u8).prop_map(Happening::Fault),
        1 => (0..5u8).prop_map(Happening::Outage),
        2 => (0..3u8).prop_map(Happening::Wait),
    ]
}

fn overlay_of(names: [&str; 3], edit: &[(usize, u8)]) -> Overlay {
    let pairs: Vec<(&str, f64)> = (edit.iter())
        .map(|(name, value)| (names[*name], f64::from(*value) / 4.0))
        .collect();
    values(&pairs)
}

const NAMES: [&str; 3] = ["weight", "temperature", "credit"];

impl Bench {
    fn happen(&mut self, happening: &Happening, number: u128) {
        match happening {
            Happening::Edit(edit) => self.set(
                &(edit.iter())
                    .map(|(name, value)| (NAMES[*name], f64::from(*value)))
                    .collect::<Vec<_>>(),
            ),
            Happening::EditThresholds(edit) => {
                let mut overlay = overlay_of([DECODE, TOKENS, FRACTION], edit);
                if let Some(tokens) = overlay.get_mut(&parameter(TOKENS)) {
                    *tokens = ParameterValue::integer(u64::from(edit[0].1));
                }
                self.set_thresholds(overlay);
            }
            Happening::RestartAgent => self.restart_agent(),
            // Routers' memory can be lost; thresholds' startup values are known to be lost with it.
            Happening::ForgetAndRestartAgent => {
                self.memory.routers.clear();
                self.restart_agent();
            }
            Happening::RestartFrontend => {
                self.frontend.routers =
                    BTreeMap::from([(id(number), FakeRouter::new(router_key("m"), startup()))]);
                self.frontend.thresholds = frontend().thresholds;
            }
            Happening::Meddle(name, value) => {
                let router = self.live();
                let value = ParameterValue::number(f64::from(*value));
                router.overlay.insert(parameter(NAMES[*name]), value);
                router.revision = router.revision.next();
            }
            Happening::Fault(which) => self.frontend.faults.push_back(match which {
                0 => Fault::LostAnswer,
                1 => Fault::Ignored,
                2 => Fault::Error(TargetError::Conflict),
                _ => Fault::Error(TargetError::transient("timed out")),
            }),
            Happening::Outage(seconds) => {
                self.frontend.down = Some(TargetError::transient("connection refused"));
                self.polls(u32::from(*seconds));
                self.frontend.down = None;
            }
            Happening::Wait(seconds) => self.polls(u32::from(*seconds)),
        }
    }

    /// What the frontend should end up with.
    fn expected(&self) -> (Values, Overlay) {
        let wanted = schemas::effective::effective(&self.state, &router_key("m"), None).overlay();
        let mut parameters = startup();
        parameters.extend(wanted);
        let limits = schemas::effective::effective_thresholds(&self.state, &name("m"), None);
        (parameters, limits.overlay())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// 500 random edits, restarts and faults in a row end as wanted, every time.
    #[test]
    fn whatever_happened_the_end_state_is_the_policy(happenings in proptest::collection::vec(happening(), 500)) {
        let mut bench = Bench::new(frontend());
        for (number, happening) in happenings.iter().enumerate() {
            bench.happen(happening, 100 + number as u128);
        }
        bench.frontend.faults.clear();
        // Longer than the longest wait: the window of the bound on putting back.
        bench.polls(130);
        let (parameters, limits) = bench.expected();
        prop_assert_eq!(bench.parameters(), parameters);
        prop_assert_eq!(bench.router().state, ApplyState::Applied);
        prop_assert_eq!(bench.thresholds().state, ApplyState::Applied);
        for (threshold, listed) in bench.limits().clone() {
            match limits.get(&threshold) {
                Some(wanted) => prop_assert_eq!(listed.as_ref(), Some(wanted)),
                None => prop_assert!(crate::threshold::equal(&threshold, listed.as_ref(), None), "{} {:?}", threshold, listed),
            }
        }
        let asked = bench.frontend.asked;
        bench.polls(100);
        prop_assert_eq!(bench.frontend.asked, asked, "a converged router is left alone");
    }
}
