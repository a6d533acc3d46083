//! From selectors on the command line to a policy, and to filters of a list.

use schemas::api::PolicyView;
use schemas::{PolicyId, PolicyKey, PolicyKind, Scope};
use serde_json::Value;

use crate::arguments::Selector;
use crate::client::{Client, read};
use crate::problem::Problem;

/// One policy, as it is addressed.
#[derive(Debug, Clone)]
pub(crate) enum Policy {
    /// By kind and scope; it need not exist yet.
    Named(PolicyKey),
    /// By id: a policy that was changed before, or a live router.
    Id(PolicyId),
}

impl Policy {
    pub(crate) fn id(&self) -> PolicyId {
        match self {
            Policy::Named(key) => key.id(),
            Policy::Id(id) => *id,
        }
    }
}

impl Selector {
    fn is_empty(&self) -> bool {
        self.scope() == Scope::default() && self.id.is_none() && self.kind.is_none() && !self.any
    }

    fn scope(&self) -> Scope {
        Scope {
            model: self.model.clone(),
            worker_type: self.worker_type,
            endpoint: self.endpoint.clone(),
            group: self.group.clone(),
        }
    }

    /// The one policy that is meant.
    pub(crate) fn one(&self, kind_if_open: PolicyKind) -> Result<Policy, Problem> {
        if let Some(id) = self.id {
            return Ok(Policy::Id(id));
        }
        let scope = self.scope();
        if scope == Scope::default() && !self.any {
            return Err(Problem::Usage(
                "which policy? give --id, or a scope with --model, --worker-type, --endpoint, --group; --any for all routers"
                    .to_owned(),
            ));
        }
        if scope != Scope::default() && self.any {
            return Err(Problem::Usage(
                "--any goes with no part of a scope".to_owned(),
            ));
        }
        let kind = self.kind.map_or(kind_if_open, PolicyKind::from);
        Ok(Policy::Named(PolicyKey { kind, scope }))
    }

    /// The same, or none when nothing was given.
    pub(crate) fn one_or_none(&self, kind_if_open: PolicyKind) -> Result<Option<Policy>, Problem> {
        if self.is_empty() {
            Ok(None)
        } else {
            self.one(kind_if_open).map(Some)
        }
    }

    /// As filters of a list.
    pub(crate) fn query(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            (
                "kind",
                self.kind.map(|kind| PolicyKind::from(kind).to_string()),
            ),
            ("model", self.model.as_ref().map(ToString::to_string)),
            ("worker_type", self.worker_type.map(|role| role.to_string())),
            ("endpoint", self.endpoint.as_ref().map(ToString::to_string)),
            ("group", self.group.as_ref().map(ToString::to_string)),
        ]
    }
}

/// The policy as it is now; `None` when it was never changed and no live router has its id.
pub(crate) async fn current(
    client: &Client,
    policy: &Policy,
) -> Result<Option<(Value, PolicyView)>, Problem> {
    let id = policy.id().to_string();
    match client.get(&["v1", "policies", &id], &[]).await {
        Ok(answer) => {
            let view = read(&answer)?;
            Ok(Some((answer, view)))
        }
        Err(Problem::Answered(body)) if body.code == schemas::api::ErrorCode::NotFound => Ok(None),
        Err(problem) => Err(problem),
    }
}
