//! What a model is made of: its roles, and which of them go together. Pure.

use scheduler::builtin::Startup;
use scheduler::dynamo::WorkerId;
use schemas::{Endpoint, Name, WorkerType};

use super::Hardware;

/// Tokens per KV block of an ordinary model.
const BLOCK_SIZE: u32 = 16;
/// Workers of an ordinary role.
const WORKERS: u64 = 4;

/// One role of a model: a router of its own, and its workers.
#[derive(Debug, Clone)]
pub struct RolePlan {
    /// The role, and the startup values of its router's policy.
    pub startup: Startup,
    /// Dynamo endpoint that its workers would have.
    pub endpoint: Endpoint,
    /// How many workers.
    pub workers: u64,
    /// What each is made of.
    pub hardware: Hardware,
}

impl RolePlan {
    /// Four ordinary workers behind Dynamo's default policy.
    #[must_use]
    pub fn new(worker_type: WorkerType, endpoint: Endpoint) -> RolePlan {
        RolePlan {
            startup: Startup::of(worker_type),
            endpoint,
            workers: WORKERS,
            hardware: Hardware::default(),
        }
    }
}

/// A model to host.
#[derive(Debug, Clone)]
pub struct ModelPlan {
    /// Its name.
    pub name: Name,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Its roles: aggregated workers, or prefill and decode workers; with or without encode workers before them. Workers are
    /// numbered on from one role to the next, from 0.
    pub roles: Vec<RolePlan>,
}

/// Why roles make no model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RolesError {
    /// Each role has one router.
    #[error("{0} workers are given twice")]
    Twice(WorkerType),
    /// Aggregated workers do both.
    #[error(
        "aggregated workers prefill and decode: they stand in the place of prefill and decode workers"
    )]
    Mixed,
    /// Nobody decodes.
    #[error("prefill workers need decode workers")]
    NoDecode,
    /// Nobody prefills.
    #[error("decode workers need prefill workers")]
    NoPrefill,
    /// Nobody does either.
    #[error("aggregated workers, or prefill and decode workers, are needed")]
    NoWorkers,
}

impl ModelPlan {
    /// A model of these roles, with ordinary KV blocks.
    #[must_use]
    pub fn new(name: Name, roles: Vec<RolePlan>) -> ModelPlan {
        ModelPlan {
            name,
            block_size: BLOCK_SIZE,
            roles,
        }
    }

    /// Judges which roles there are.
    ///
    /// # Errors
    /// [`RolesError`].
    pub fn check(&self) -> Result<(), RolesError> {
        let count = |role| {
            let roles = self.roles.iter();
            roles.filter(|one| one.startup.worker_type == role).count()
        };
        let all = WorkerType::ALL;
        if let Some(twice) = all.into_iter().find(|role| count(*role) > 1) {
            return Err(RolesError::Twice(twice));
        }
        let [aggregated, prefill, decode, _] = all.map(|role| count(role) > 0);
        match (aggregated, prefill, decode) {
            (true, false, false) | (false, true, true) => Ok(()),
            (true, _, _) => Err(RolesError::Mixed),
            (false, true, false) => Err(RolesError::NoDecode),
            (false, false, true) => Err(RolesError::NoPrefill),
            (false, false, false) => Err(RolesError::NoWorkers),
        }
    }

    /// Each role with the number of its first worker.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (&RolePlan, WorkerId)> {
        self.roles.iter().scan(0, |next, role| {
            let first = *next;
            *next += role.workers;
            Some((role, first))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_roles_that_serve_a_request_together_make_a_model() {
        use WorkerType::{Aggregated, Decode, Encode, Prefill};
        let cases: [(&[WorkerType], Result<(), RolesError>); 10] = [
            (&[Aggregated], Ok(())),
            (&[Encode, Aggregated], Ok(())),
            (&[Decode, Prefill], Ok(())),
            (&[Encode, Prefill, Decode], Ok(())),
            (&[], Err(RolesError::NoWorkers)),
            (&[Encode], Err(RolesError::NoWorkers)),
            (&[Prefill], Err(RolesError::NoDecode)),
            (&[Decode], Err(RolesError::NoPrefill)),
            (&[Aggregated, Decode], Err(RolesError::Mixed)),
            (&[Decode, Prefill, Decode], Err(RolesError::Twice(Decode))),
        ];
        for (roles, wanted) in cases {
            let role = |role: &WorkerType| RolePlan::new(*role, "a/b/c".parse().unwrap());
            let roles: Vec<RolePlan> = roles.iter().map(role).collect();
            let plan = ModelPlan::new(Name::new("m").unwrap(), roles);
            assert_eq!(plan.check(), wanted, "{:?}", plan.roles);
            let firsts: Vec<WorkerId> = plan.numbered().map(|(_, first)| first).collect();
            let wanted: Vec<WorkerId> = (0..plan.roles.len() as u64).map(|at| at * 4).collect();
            assert_eq!(firsts, wanted);
        }
    }
}
