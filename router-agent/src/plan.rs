//! `plan`: what one router is owed. A pure function of what is wanted, what is listed and what is remembered.
//!
//! Invariant: applying a plan and listing again leaves an empty plan (property `a_plan_after_apply_is_empty`).

use std::fmt;

use schemas::{Overlay, ParameterName, ParameterValue, Patch, Revision};

use crate::memory::RouterMemory;
use crate::target::Configuration;

/// What to do about one router. Prints as one line.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// It lists everything that is wanted.
    Nothing,
    /// One compare-and-swap.
    Patch {
        /// On this local revision.
        expected: Revision,
        /// Every overlay value, and `null` for each parameter to restore.
        patch: Patch,
        /// Why: the parameters that differ.
        differences: Vec<Difference>,
    },
    /// It cannot be applied here.
    Unsupported {
        /// Why.
        why: &'static str,
    },
}

/// One parameter that is not as wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Which.
    pub name: ParameterName,
    /// What the router lists; `None` when it does not list the parameter.
    pub listed: Option<ParameterValue>,
    /// What is wanted.
    pub wanted: Wanted,
}

/// What a parameter should be.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    /// This value of the overlay.
    Value(ParameterValue),
    /// The startup value, which is this one.
    Startup(ParameterValue),
    /// The startup value, which was never seen.
    UnknownStartup,
}

/// What one router is owed.
///
/// A patch carries every overlay value, not only the ones that differ, so that the router ends in the wanted state
/// whatever happened in between. Parameters that no overlay names are owed their startup value: known ones when they
/// differ; unknown ones (a router met after somebody had changed it, with all memory lost) once, in any case.
#[must_use]
pub fn plan(desired: &Overlay, observed: Option<&Configuration>, memory: &RouterMemory) -> Plan {
    let Some(observed) = observed else {
        return if desired.is_empty() {
            Plan::Nothing
        } else {
            Plan::Unsupported {
                why: "the router's policy has no runtime configuration",
            }
        };
    };
    let mut differences = Vec::new();
    for (name, value) in desired {
        let listed = observed.parameters.get(name);
        if listed != Some(value) {
            differences.push(Difference {
                name: name.clone(),
                listed: listed.cloned(),
                wanted: Wanted::Value(value.clone()),
            });
        }
    }
    for (name, listed) in &observed.parameters {
        if desired.contains_key(name) {
            continue;
        }
        let wanted = match memory.startup.get(name) {
            Some(startup) if startup == listed => continue,
            Some(startup) => Wanted::Startup(startup.clone()),
            None if observed.revision == Revision::ZERO => continue,
            None => Wanted::UnknownStartup,
        };
        differences.push(Difference {
            name: name.clone(),
            listed: Some(listed.clone()),
            wanted,
        });
    }
    if differences.is_empty() {
        return Plan::Nothing;
    }
    let mut patch: Patch = desired
        .iter()
        .map(|(name, value)| (name.clone(), Some(value.clone())))
        .collect();
    let owed = differences.iter().map(|difference| &difference.name);
    // A name that the router does not list cannot be restored; naming it would refuse the whole patch.
    let no_longer_named = memory
        .overlaid
        .iter()
        .filter(|name| observed.parameters.contains_key(*name));
    for name in owed.chain(no_longer_named) {
        patch.entry(name.clone()).or_insert(None);
    }
    Plan::Patch {
        expected: observed.revision,
        patch,
        differences,
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plan::Nothing => f.write_str("nothing to do"),
            Plan::Unsupported { why } => f.write_str(why),
            Plan::Patch {
                expected,
                differences,
                ..
            } => {
                write!(f, "on revision {expected}: ")?;
                for (index, difference) in differences.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}{difference}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.wanted {
            Wanted::Value(value) => write!(f, "set {name} to {value}")?,
            Wanted::Startup(value) => write!(f, "restore {name} to {value}")?,
            Wanted::UnknownStartup => write!(f, "restore {name}")?,
        }
        match &self.listed {
            Some(listed) => write!(f, " (lists {listed})"),
            None => write!(f, " (lists none)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::memory::Movement;
    use crate::reconcile::tests::{parameter, router_key, startup, values};
    use crate::target::Values;
    use crate::testing::FakeRouter;
    use proptest::prelude::*;

    fn listed(revision: u64, parameters: Values) -> Configuration {
        Configuration {
            revision: Revision(revision),
            parameters,
        }
    }

    fn knowing(startup: Values, overlaid: &[&str]) -> RouterMemory {
        RouterMemory {
            startup,
            overlaid: overlaid.iter().map(|name| parameter(name)).collect(),
            ..RouterMemory::default()
        }
    }

    #[test]
    fn plans_say_what_they_do() {
        let now = |temperature, weight| {
            values(&[
                ("weight", weight),
                ("temperature", temperature),
                ("credit", 0.75),
            ])
        };
        let cases: [(&str, Values, Configuration, RouterMemory, &str); 8] = [
            (
                "new and unaddressed",
                values(&[]),
                listed(0, startup()),
                knowing(startup(), &[]),
                "nothing to do",
            ),
            (
                "new",
                values(&[("temperature", 0.7)]),
                listed(0, startup()),
                knowing(startup(), &[]),
                "on revision 0: set temperature to 0.7 (lists 0.0)",
            ),
            (
                "as wanted",
                values(&[("temperature", 0.7)]),
                listed(4, now(0.7, 1.0)),
                knowing(startup(), &["temperature"]),
                "nothing to do",
            ),
            (
                "no longer named",
                values(&[]),
                listed(1, now(0.7, 1.0)),
                knowing(startup(), &["temperature"]),
                "on revision 1: restore temperature to 0.0 (lists 0.7)",
            ),
            (
                "one for another",
                values(&[("weight", 2.0)]),
                listed(1, now(0.7, 1.0)),
                knowing(startup(), &["temperature"]),
                "on revision 1: set weight to 2.0 (lists 1.0), restore temperature to 0.0 (lists 0.7)",
            ),
            (
                "0 is a value",
                values(&[("weight", 0.0)]),
                listed(0, startup()),
                knowing(startup(), &[]),
                "on revision 0: set weight to 0.0 (lists 1.0)",
            ),
            (
                "history unknown",
                values(&[("weight", 1.0)]),
                listed(3, startup()),
                RouterMemory::default(),
                "on revision 3: restore credit (lists 0.75), restore temperature (lists 0.0)",
            ),
            (
                "not listed",
                values(&[("mine", 1.0)]),
                listed(0, startup()),
                knowing(startup(), &[]),
                "on revision 0: set mine to 1.0 (lists none)",
            ),
        ];
        for (case, desired, observed, memory, text) in cases {
            assert_eq!(
                plan(&desired, Some(&observed), &memory).to_string(),
                text,
                "{case}"
            );
        }
        let none = RouterMemory::default();
        assert_eq!(plan(&values(&[]), None, &none), Plan::Nothing);
        let text = plan(&values(&[("weight", 1.0)]), None, &none).to_string();
        assert_eq!(text, "the router's policy has no runtime configuration");
    }

    #[test]
    fn a_patch_carries_every_value_and_each_name_to_restore() {
        let observed = listed(
            5,
            values(&[("weight", 2.0), ("temperature", 0.7), ("credit", 0.75)]),
        );
        let desired = values(&[("weight", 2.0), ("credit", 0.5)]);
        let memory = knowing(startup(), &["temperature", "weight", "gone"]);
        let Plan::Patch {
            expected, patch, ..
        } = plan(&desired, Some(&observed), &memory)
        else {
            panic!("nothing planned");
        };
        assert_eq!(expected, Revision(5));
        let wanted: Patch = BTreeMap::from([
            (parameter("weight"), Some(ParameterValue::number(2.0))),
            (parameter("credit"), Some(ParameterValue::number(0.5))),
            (parameter("temperature"), None),
        ]);
        assert_eq!(patch, wanted);
    }

    #[test]
    fn numbers_compare_as_numbers() {
        let spelled = BTreeMap::from([(
            parameter("weight"),
            ParameterValue::raw(serde_json::json!(2)),
        )]);
        let startup = values(&[("weight", -0.0)]);
        let plan_of = |desired: Values| {
            plan(
                &desired,
                Some(&listed(1, spelled.clone())),
                &knowing(startup.clone(), &[]),
            )
        };
        assert_eq!(plan_of(values(&[("weight", 2.0)])), Plan::Nothing);
        let zero = BTreeMap::from([(
            parameter("weight"),
            ParameterValue::raw(serde_json::json!(-0.0)),
        )]);
        let observed = listed(1, zero);
        assert_eq!(
            plan(
                &values(&[]),
                Some(&observed),
                &knowing(values(&[("weight", 0.0)]), &[])
            ),
            Plan::Nothing
        );
    }

    fn some_values() -> impl Strategy<Value = Values> {
        let name = prop_oneof![Just("weight"), Just("temperature"), Just("credit")];
        proptest::collection::btree_map(
            name.prop_map(parameter),
            (0..5u8).prop_map(|value| ParameterValue::number(f64::from(value) / 4.0)),
            0..4,
        )
    }

    proptest! {
        #[test]
        fn a_plan_after_apply_is_empty(
            desired in some_values(),
            overlay in some_values(),
            known in any::<bool>(),
            revision in 0..3u64,
        ) {
            let mut router = FakeRouter::new(router_key("m"), startup());
            let mut memory = RouterMemory::default();
            if known {
                memory.see(&listed(0, router.parameters()));
            }
            if revision > 0 {
                router.overlay = overlay;
                router.revision = Revision(revision);
            }
            let mut frontend = crate::testing::FakeFrontend::default();
            let id = crate::reconcile::tests::id(1);
            frontend.routers.insert(id, router);
            for round in 0..2 {
                let router = &frontend.routers[&id];
                let observed = listed(router.revision.0, router.parameters());
                memory.see(&observed);
                match plan(&desired, Some(&observed), &memory) {
                    Plan::Patch { expected, patch, .. } => {
                        prop_assert_eq!(round, 0, "a second patch");
                        memory.sending(expected, &patch);
                        let applied = frontend.apply(id, expected, &patch).unwrap();
                        memory.taken(&patch, applied.revision, &applied.parameters);
                    }
                    Plan::Nothing => {}
                    Plan::Unsupported { why } => prop_assert!(false, "{}", why),
                }
            }
            let router = &frontend.routers[&id];
            let mut wanted = startup();
            wanted.extend(desired);
            prop_assert_eq!(router.parameters(), wanted);
            prop_assert_eq!(memory.see(&listed(router.revision.0, router.parameters())), Movement::Ours);
        }
    }
}
