//! A log that misbehaves on purpose, around any other: for tests of commit, of the service and of agents, and for the
//! simulation.
//!
//! Every fault is one that a real broker or network shows. Faults come from a script (first in, first used) or from a
//! seeded plan; the same seed and the same calls give the same faults.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use schemas::{Position, Subject};
use tokio::sync::watch;

use crate::port::{Appended, Entry, EventLog, Failure, Head, LogReader, Seen, Subscription, Tails};

/// What goes wrong with one append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendFault {
    /// Nothing.
    None,
    /// It is stored, and the acknowledgement is lost.
    LostAcknowledgement,
    /// It is lost, and so is the knowledge of that.
    LostRequest,
    /// Its caller gives up; it is stored when [`Faulty::land_late`] is called, or before a later call.
    LateLanding,
    /// It is stored, and answered as a conflict with itself (a retry below the port).
    ConflictWithItself,
    /// It is refused and not stored.
    Refused,
    /// It takes this long.
    Delay(Duration),
}

/// How often a seeded plan brings faults, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// Of appends.
    pub append: u8,
    /// Of reads.
    pub read: u8,
    /// That a late append lands before any one later call.
    pub landing: u8,
}

struct LateAppend {
    subject: Subject,
    expected: Position,
    bytes: Bytes,
}

struct Plan {
    appends: VecDeque<AppendFault>,
    refused_reads: usize,
    seeded: Option<(u64, Rates)>,
    late: Vec<LateAppend>,
}

impl Plan {
    /// SplitMix64: small, and the same everywhere.
    fn draw(&mut self) -> u64 {
        let Some((state, _)) = &mut self.seeded else {
            return 0;
        };
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn happens(&mut self, rate: fn(&Rates) -> u8) -> bool {
        let Some(percent) = self.seeded.map(|(_, rates)| rate(&rates)) else {
            return false;
        };
        self.draw() % 100 < u64::from(percent)
    }

    fn append_fault(&mut self) -> AppendFault {
        if let Some(fault) = self.appends.pop_front() {
            return fault;
        }
        if !self.happens(|rates| rates.append) {
            return AppendFault::None;
        }
        match self.draw() % 5 {
            0 => AppendFault::LostAcknowledgement,
            1 => AppendFault::LostRequest,
            2 => AppendFault::LateLanding,
            3 => AppendFault::ConflictWithItself,
            _ => AppendFault::Refused,
        }
    }
}

struct Shared {
    log: Arc<dyn EventLog>,
    plan: Mutex<Plan>,
    reachable: watch::Sender<bool>,
    frozen: watch::Sender<bool>,
    redelivering: watch::Sender<bool>,
}

/// The wrapper. Cheap to clone; clones share script and state.
#[derive(Clone)]
pub struct Faulty {
    shared: Arc<Shared>,
}

impl Faulty {
    /// Around a log; faultless until told otherwise.
    #[must_use]
    pub fn new(log: Arc<dyn EventLog>) -> Faulty {
        Faulty {
            shared: Arc::new(Shared {
                log,
                plan: Mutex::new(Plan {
                    appends: VecDeque::new(),
                    refused_reads: 0,
                    seeded: None,
                    late: Vec::new(),
                }),
                reachable: watch::Sender::new(true),
                frozen: watch::Sender::new(false),
                redelivering: watch::Sender::new(false),
            }),
        }
    }

    /// The next appends meet these faults, in this order.
    pub fn script(&self, faults: impl IntoIterator<Item = AppendFault>) {
        self.plan().appends.extend(faults);
    }

    /// The next `count` reads fail.
    pub fn refuse_reads(&self, count: usize) {
        self.plan().refused_reads = count;
    }

    /// From now on, calls that no script covers meet faults drawn from this seed.
    pub fn seed(&self, seed: u64, rates: Rates) {
        self.plan().seeded = Some((seed, rates));
    }

    /// No more faults. What was to land late still lands.
    pub fn heal(&self) {
        let mut plan = self.plan();
        plan.appends.clear();
        plan.refused_reads = 0;
        plan.seeded = None;
        drop(plan);
        self.shared.reachable.send_replace(true);
        self.shared.frozen.send_replace(false);
        self.shared.redelivering.send_replace(false);
    }

    /// Whether the log can be reached at all.
    pub fn set_reachable(&self, reachable: bool) {
        self.shared.reachable.send_replace(reachable);
    }

    /// Whether subscriptions stop silently: no record, no error.
    pub fn set_frozen(&self, frozen: bool) {
        self.shared.frozen.send_replace(frozen);
    }

    /// Whether subscriptions break the port's contract by giving each record a second time, after the one that follows it:
    /// repeated and out of order. For proving that a reader defends itself.
    pub fn set_redelivering(&self, redelivering: bool) {
        self.shared.redelivering.send_replace(redelivering);
    }

    /// Stores the oldest append that is still to land late, if it can be stored. `None` when there is none.
    pub async fn land_late(&self) -> Option<Result<Appended, Failure>> {
        let late = {
            let mut plan = self.plan();
            (!plan.late.is_empty()).then(|| plan.late.remove(0))
        }?;
        let log = &self.shared.log;
        Some(log.append(&late.subject, late.expected, late.bytes).await)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.shared
            .plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn land_by_chance(&self) {
        let lands = {
            let mut plan = self.plan();
            !plan.late.is_empty() && plan.happens(|rates| rates.landing)
        };
        if lands {
            // Whether it could still be stored shows in the log.
            let _ = self.land_late().await;
        }
    }

    fn reached(&self) -> Result<(), Failure> {
        if *self.shared.reachable.borrow() {
            Ok(())
        } else {
            Err(Failure::Determinate("the log is not reachable".to_owned()))
        }
    }

    async fn before_read(&self) -> Result<(), Failure> {
        self.land_by_chance().await;
        self.reached()?;
        let mut plan = self.plan();
        if plan.refused_reads > 0 {
            plan.refused_reads -= 1;
        } else if !plan.happens(|rates| rates.read) {
            return Ok(());
        }
        Err(Failure::Determinate("the read failed".to_owned()))
    }
}

#[async_trait]
impl LogReader for Faulty {
    async fn head(&self) -> Result<Head, Failure> {
        self.before_read().await?;
        self.shared.log.head().await
    }

    async fn tails(&self) -> Result<Tails, Failure> {
        self.before_read().await?;
        self.shared.log.tails().await
    }

    async fn next_on(&self, subject: &Subject, after: Position) -> Result<Option<Entry>, Failure> {
        self.before_read().await?;
        self.shared.log.next_on(subject, after).await
    }

    async fn at(&self, position: Position) -> Result<Option<Entry>, Failure> {
        self.before_read().await?;
        self.shared.log.at(position).await
    }

    async fn follow(&self, seen: Seen) -> Result<Box<dyn Subscription>, Failure> {
        self.before_read().await?;
        Ok(Box::new(FaultySubscription {
            inner: self.shared.log.follow(seen).await?,
            frozen: self.shared.frozen.subscribe(),
            redelivering: self.shared.redelivering.subscribe(),
            previous: None,
            again: None,
        }))
    }
}

#[async_trait]
impl EventLog for Faulty {
    async fn append(
        &self,
        subject: &Subject,
        expected: Position,
        bytes: Bytes,
    ) -> Result<Appended, Failure> {
        self.land_by_chance().await;
        self.reached()?;
        let lost = || Err(Failure::Indeterminate("no answer".to_owned()));
        let fault = self.plan().append_fault();
        let log = &self.shared.log;
        match fault {
            AppendFault::None => log.append(subject, expected, bytes).await,
            AppendFault::LostAcknowledgement => {
                log.append(subject, expected, bytes).await?;
                lost()
            }
            AppendFault::LostRequest => lost(),
            AppendFault::LateLanding => {
                self.plan().late.push(LateAppend {
                    subject: subject.clone(),
                    expected,
                    bytes,
                });
                lost()
            }
            AppendFault::ConflictWithItself => {
                log.append(subject, expected, bytes).await?;
                Ok(Appended::Conflict)
            }
            AppendFault::Refused => Err(Failure::Determinate("refused".to_owned())),
            AppendFault::Delay(duration) => {
                tokio::time::sleep(duration).await;
                log.append(subject, expected, bytes).await
            }
        }
    }
}

struct FaultySubscription {
    inner: Box<dyn Subscription>,
    frozen: watch::Receiver<bool>,
    redelivering: watch::Receiver<bool>,
    previous: Option<Entry>,
    again: Option<Entry>,
}

#[async_trait]
impl Subscription for FaultySubscription {
    async fn next(&mut self) -> Result<Entry, Failure> {
        // Fails only when the wrapper is gone; then nothing freezes any more.
        let _ = self.frozen.wait_for(|frozen| !frozen).await;
        if let Some(entry) = self.again.take() {
            return Ok(entry);
        }
        let entry = self.inner.next().await?;
        if *self.redelivering.borrow() {
            self.again = self.previous.replace(entry.clone());
        }
        Ok(entry)
    }
}
