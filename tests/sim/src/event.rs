//! What can happen in a world.

use crate::frontends::{Ask, Served, Trouble};
use crate::net::{Answer, Call, Item, Node};
use event_log::Failure;
use schemas::status::AgentStatus;
use schemas::{CommandId, LogId, Position};

/// A timer of one process.
#[derive(Debug, Clone)]
pub enum Timer {
    /// Meet the log again.
    Meet,
    /// Make a consumer of this subscription.
    Open(u64, Position),
    /// The subscription's watchdog.
    Watchdog(u64),
    /// The reader's own look.
    Check,
    /// The disk has it.
    Written,
    /// The store flushes by itself.
    Flush,
    /// Nothing came since so many records.
    Idle(u64),
    /// A frontend's loop, at its wake-up.
    Loop(usize, u64),
    /// A report; true = because of a change.
    Report(bool),
    /// A write looks what is known.
    Look(CommandId, u64),
    /// A write reads its record.
    Read(CommandId, u64, Position),
    /// A write's time is over.
    Late(CommandId, u64),
    /// A commit has waited.
    Commit(CommandId, u64),
}

/// Something that happens.
#[derive(Debug, Clone)]
pub enum Event {
    /// A call is at the broker.
    Arrive {
        /// Whose.
        from: Node,
        /// Of which start.
        epoch: u64,
        /// Which call.
        id: u64,
        /// What.
        call: Call,
        /// The log that it is meant for.
        known: Option<LogId>,
        /// A missing log may be made.
        create: bool,
        /// Its caller has given up.
        late: bool,
    },
    /// The broker's answer is at the process.
    Answered {
        /// Whose.
        to: Node,
        /// Of which start.
        epoch: u64,
        /// Which call.
        id: u64,
        /// What.
        result: Result<Answer, Failure>,
    },
    /// A call waited long enough.
    Timeout {
        /// Whose.
        to: Node,
        /// Of which start.
        epoch: u64,
        /// Which call.
        id: u64,
    },
    /// Something came through a consumer.
    Delivery {
        /// To whom.
        to: Node,
        /// Of which start.
        epoch: u64,
        /// Through which.
        feed: u64,
        /// What.
        item: Item,
    },
    /// Consumers say that they live.
    Heartbeats,
    /// A report is at a service.
    Heard {
        /// Which service.
        service: usize,
        /// Of which start.
        epoch: u64,
        /// What.
        status: Box<AgentStatus>,
    },
    /// A timer.
    Timer {
        /// Whose.
        to: Node,
        /// Of which start.
        epoch: u64,
        /// Which.
        timer: Timer,
    },
    /// A call is at a frontend.
    FrontendArrive {
        /// Whose.
        agent: usize,
        /// Of which start.
        epoch: u64,
        /// Which of its loops.
        at: usize,
        /// To which process of the frontend: a connection ends with the process that it is to.
        process: u64,
        /// What.
        ask: Box<Ask>,
        /// How it goes wrong.
        trouble: Trouble,
    },
    /// A frontend's answer is at the agent.
    FrontendAnswer {
        /// Whose.
        agent: usize,
        /// Of which start.
        epoch: u64,
        /// Which of its loops.
        at: usize,
        /// To what.
        ask: Box<Ask>,
        /// What.
        answer: Box<Result<Served, router_agent::target::TargetError>>,
    },
    /// Something of a client.
    Client(crate::client::Step),
    /// A fault begins or ends.
    Fault(crate::nemesis::Act),
    /// Everything heals.
    Heal,
    /// Is everything well again?
    Judge,
}
