//! The agent of the Router Policy Service: keeps the routers of its frontends on the policy that the log says.
//!
//! Data flows one way: log -> [`replica`] -> [`reconcile`] (with [`plan`] and [`threshold`], both pure) -> [`target`] ->
//! [`report`]. Each frontend has a loop of its own.
//! Never does: write policies, decide, or know the service.

pub mod agent;
pub mod dynamo_http;
pub mod frontend;
pub mod health;
pub mod in_process;
pub mod local_copy;
pub mod memory;
pub mod plan;
pub mod reconcile;
pub mod remembered;
pub mod replica;
pub mod report;
pub mod startup_file;
pub mod store;
pub mod target;
pub mod testing;
pub mod threshold;

pub use agent::{AgentError, Config, Frontend, Running, adopt, start};
pub use dynamo_http::{DynamoHttp, Timeouts};
pub use in_process::InProcess;
pub use reconcile::Mode;
pub use target::PolicyTarget;
