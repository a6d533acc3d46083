//! From bytes that were ever written to today's types.
//!
//! Owns: reading records of every version, one pure step per version; the layout version of local stores; the wanted
//! configuration of the JetStream stream and its comparison with what a broker has.
//! Never does: I/O. Recorded bytes are never rewritten; they are understood anew each time.

pub mod record;
pub mod store;
pub mod stream;

pub use record::read;
