//! How a replacement gets into a running actor: post, seat, ticket. Generic and free of Dynamo, so that a model checker
//! runs exactly this code (`tests/model_swap.rs` includes the file with its own `sync`).
//!
//! Owns: the order of things. Never does: build or drop a policy inside the actor's turn.
//!
//! Invariant: only the seat's owner changes the seat, so a selection between two turns sees one whole policy.
//! Invariant: a ticket is taken by the actor or given up by the caller, never both; whoever loses learns it.

use std::collections::VecDeque;

use crate::sync::{Arc, AtomicU8, AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError};

/// Bound: letters that wait for one actor. More callers than this on one stalled router are told so at once.
pub(crate) const LETTERS_MAX: usize = 256;

const WAITING: u8 = 0;
const TAKEN: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Decides between the actor that takes a letter and the caller that gives up on it.
#[derive(Debug, Default)]
pub(crate) struct Ticket(AtomicU8);

impl Ticket {
    /// Actor: true when the letter is to be handled.
    pub(crate) fn take(&self) -> bool {
        self.0
            .compare_exchange(WAITING, TAKEN, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Caller: true when the letter will never be handled; false when an answer is on its way.
    pub(crate) fn give_up(&self) -> bool {
        self.0
            .compare_exchange(WAITING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// The way back to the caller. Must not block and must not allocate.
pub(crate) trait Reply<V> {
    /// `Err` carries the current revision of a conflict.
    fn answer(self, outcome: Result<V, u64>);
}

/// A whole policy for the seat.
pub(crate) struct Offer<P, V> {
    /// Revision that it was decided on.
    pub(crate) expected: u64,
    /// What selects from now on.
    pub(crate) policy: P,
    /// What is reported from now on.
    pub(crate) view: V,
}

/// One request to the actor.
pub(crate) struct Letter<P, V, R> {
    /// Who decides.
    pub(crate) ticket: Arc<Ticket>,
    /// `None` only reads.
    pub(crate) offer: Option<Box<Offer<P, V>>>,
    /// Where the answer goes.
    pub(crate) reply: R,
}

/// What callers and the actor share.
pub(crate) struct Post<P, V, R> {
    waiting: AtomicUsize,
    letters: Mutex<VecDeque<Letter<P, V, R>>>,
    view: Mutex<V>,
    bin: Mutex<Vec<Box<Offer<P, V>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while one of these is held leaves them whole: each holds them for a move only.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P, V: Clone, R: Reply<V>> Post<P, V, R> {
    /// Reports `view` until a replacement is seated.
    pub(crate) fn new(view: V) -> Post<P, V, R> {
        Post {
            waiting: AtomicUsize::new(0),
            letters: Mutex::new(VecDeque::with_capacity(LETTERS_MAX)),
            view: Mutex::new(view),
            bin: Mutex::new(Vec::with_capacity(2 * LETTERS_MAX)),
        }
    }

    /// Puts a letter where the actor finds it; gives it back when too many wait.
    pub(crate) fn send(&self, letter: Letter<P, V, R>) -> Result<(), Letter<P, V, R>> {
        let mut letters = lock(&self.letters);
        if letters.len() >= LETTERS_MAX {
            return Err(letter);
        }
        letters.push_back(letter);
        self.waiting.store(letters.len(), Ordering::Release);
        Ok(())
    }

    /// What the actor last seated.
    pub(crate) fn view(&self) -> V {
        lock(&self.view).clone()
    }

    /// Drops what the actor is done with, here and not there.
    pub(crate) fn sweep(&self) {
        if lock(&self.bin).is_empty() {
            return;
        }
        let mut rubbish = Vec::with_capacity(2 * LETTERS_MAX);
        std::mem::swap(&mut *lock(&self.bin), &mut rubbish);
        drop(rubbish);
    }

    fn next(&self) -> Option<Letter<P, V, R>> {
        let mut letters = lock(&self.letters);
        let letter = letters.pop_front();
        self.waiting.store(letters.len(), Ordering::Release);
        letter
    }

    fn discard(&self, offer: Box<Offer<P, V>>) {
        let mut bin = lock(&self.bin);
        // Bound: every caller sweeps before and after its letter, so at most the letters of callers that went away stay.
        // A full bin drops here, in the actor: slower, never wrong.
        if bin.len() < bin.capacity() {
            bin.push(offer);
        }
    }
}

/// The actor's own place: the policy that selects.
pub(crate) struct Seat<P> {
    revision: u64,
    policy: P,
}

impl<P> Seat<P> {
    /// Revision 0.
    pub(crate) fn new(policy: P) -> Seat<P> {
        Seat {
            revision: 0,
            policy,
        }
    }

    /// The policy for the selection that starts now.
    pub(crate) fn policy(&self) -> &P {
        &self.policy
    }

    /// Handles every letter that waits. One atomic load when none does.
    ///
    /// SUBTLE: the count is only a hint, everything else is behind locks. A turn that misses a letter just posted is as if
    /// it came before it; the bell's turn cannot miss it, because the channel that carries the bell orders it after the post.
    #[inline]
    pub(crate) fn turn<V: Clone, R: Reply<V>>(&mut self, post: &Post<P, V, R>) {
        if post.waiting.load(Ordering::Acquire) != 0 {
            self.handle(post);
        }
    }

    #[cold]
    fn handle<V: Clone, R: Reply<V>>(&mut self, post: &Post<P, V, R>) {
        while let Some(letter) = post.next() {
            let taken = letter.ticket.take();
            match letter.offer {
                Some(offer) if !taken => post.discard(offer),
                None if !taken => {}
                None => letter.reply.answer(Ok(post.view())),
                Some(offer) if offer.expected != self.revision => {
                    post.discard(offer);
                    letter.reply.answer(Err(self.revision));
                }
                Some(mut offer) => {
                    std::mem::swap(&mut self.policy, &mut offer.policy);
                    self.revision += 1;
                    let seated = offer.view.clone();
                    std::mem::swap(&mut *lock(&post.view), &mut offer.view);
                    post.discard(offer);
                    letter.reply.answer(Ok(seated));
                }
            }
        }
    }
}
