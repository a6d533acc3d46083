//! Dynamo's default policy with live parameters: startup rules here, cost and choice below.
//!
//! Owns: what each role starts with and which inputs it asks for. Never does: touch a request.
//!
//! Sources: the cost is that of Dynamo 1.6.1's default policy (`tests/parity` compares selection by selection); the startup
//! rules are those of Dynamo 1.7, where every non-zero cache weight asks for cache inputs, not only the device credit.

mod cost;
mod pick;

pub(crate) use pick::cheapest;

use std::collections::BTreeMap;

use schemas::parameter::WORKER_SELECTION;
use schemas::{ParameterName, ParameterValue, WorkerType};
use serde_json::Value;

use crate::dynamo::{KvRouterConfig, WorkerSelectionPolicy, worker_type};
use crate::parameters::{Invalid, Parameter, Parameters, Rule};
use crate::policy::{Builder, Policy, Replacement};

/// What a router of the built-in policy starts with.
#[derive(Debug, Clone)]
pub struct Startup {
    /// Role of its workers.
    pub worker_type: WorkerType,
    /// Disaggregated decode that may also prefill: keeps cache credit. Means nothing for other roles.
    pub conditional_decode: bool,
    /// Routes by load alone: cache weights resolve to 0, whatever is given.
    pub load_only: bool,
    /// Values that the operator gave; the others are Dynamo's defaults.
    pub given: BTreeMap<String, Value>,
}

impl Startup {
    /// Dynamo's defaults for a role.
    #[must_use]
    pub fn of(worker_type: WorkerType) -> Startup {
        Startup {
            worker_type,
            conditional_decode: false,
            load_only: false,
            given: BTreeMap::new(),
        }
    }

    fn plain_decode(&self) -> bool {
        self.worker_type == WorkerType::Decode && !self.conditional_decode
    }
}

/// Numbers of the cost, in the contract's order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Weights {
    pub(crate) device: f64,
    pub(crate) device_decay: f64,
    pub(crate) prefill: f64,
    pub(crate) active_request: f64,
    pub(crate) host: f64,
    pub(crate) disk: f64,
    pub(crate) shared: f64,
    pub(crate) temperature: f64,
}

impl Weights {
    fn of(parameters: &Parameters) -> Weights {
        Weights {
            device: parameters.number("overlap_score_credit"),
            device_decay: parameters.number("overlap_score_credit_decay"),
            prefill: parameters.number("prefill_load_scale"),
            active_request: parameters.number("decode_active_request_weight"),
            host: parameters.number("host_cache_hit_weight"),
            disk: parameters.number("disk_cache_hit_weight"),
            shared: parameters.number("shared_cache_multiplier"),
            temperature: parameters.number("router_temperature"),
        }
    }

    fn use_cache(&self) -> bool {
        [self.device, self.host, self.disk, self.shared]
            .iter()
            .any(|weight| *weight != 0.0)
    }
}

/// Builds the built-in policy, now and again.
pub struct BuiltIn {
    declared: Vec<Parameter>,
    worker_label: &'static str,
}

impl BuiltIn {
    /// Resolves the startup values.
    ///
    /// - Load-only routers and plain decode routers: all four cache weights are 0.
    /// - A device credit of 0: tier weights that were not given are 0; given ones count and ask for cache inputs.
    ///
    /// # Errors
    /// [`Invalid`]: an unknown name or a value outside of its range, as a change would be refused.
    pub fn new(startup: &Startup) -> Result<BuiltIn, Invalid> {
        let mut declared = declared()?;
        for (name, value) in &startup.given {
            let parameter = declared
                .iter_mut()
                .find(|parameter| parameter.name.as_str() == name)
                .ok_or_else(|| Invalid::Unknown(name.clone()))?;
            parameter.startup = parameter.check(value)?;
        }
        let cacheless = startup.load_only || startup.plain_decode();
        let uncredited = declared.iter().any(|parameter| {
            parameter.name.as_str() == "overlap_score_credit"
                && parameter.startup == ParameterValue::number(0.0)
        });
        for (parameter, known) in declared.iter_mut().zip(&WORKER_SELECTION) {
            let omitted = !startup.given.contains_key(known.name);
            if known.cache_scoring && (cacheless || (uncredited && omitted)) {
                parameter.startup = ParameterValue::number(0.0);
            }
        }
        Ok(BuiltIn {
            declared,
            worker_label: worker_type(startup.worker_type).default_selector_label(),
        })
    }

    /// The policy to start a scheduler with.
    ///
    /// # Errors
    /// As [`BuiltIn::new`].
    pub fn policy(startup: &Startup) -> Result<Policy, Invalid> {
        Ok(Policy::Live(Box::new(BuiltIn::new(startup)?)))
    }
}

impl Builder for BuiltIn {
    fn parameters(&self) -> &[Parameter] {
        &self.declared
    }

    fn build(&self, parameters: &Parameters) -> Result<Replacement, Invalid> {
        let weights = Weights::of(parameters);
        let scorer = cost::Cost::new(weights, self.worker_label);
        let policy = WorkerSelectionPolicy::new(
            KvRouterConfig::default(),
            self.worker_label,
            vec![Box::new(scorer)],
            Box::new(pick::Pick::new(weights.temperature)),
        );
        Ok(Replacement {
            // As Dynamo's own: an eligible affinity target is the only candidate.
            policy: policy.with_exclusive_affinity(true),
            worker_label: self.worker_label,
        })
    }
}

/// Dynamo's parameters with their defaults.
fn declared() -> Result<Vec<Parameter>, Invalid> {
    let one = |known: &schemas::parameter::BuiltIn| {
        let name = ParameterName::new(known.name)
            .map_err(|why| Invalid::Build(format!("{:?} {why}", known.name)))?;
        Ok(Parameter {
            name,
            rule: Rule::BuiltIn(known.range),
            startup: ParameterValue::number(known.default.unwrap_or(0.0)),
        })
    };
    WORKER_SELECTION.iter().map(one).collect()
}
