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
