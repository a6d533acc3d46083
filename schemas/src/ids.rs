//! Newtypes for every id and counter, so that no two of them can be mixed up.
//!
//! Owns: their text forms. Never does: make an id (ids are arguments; see `event_log::ambient`).

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Dense counter of one policy: 0 = never changed, +1 per committed change.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision of a policy that was never changed.
    pub const ZERO: Revision = Revision(0);

    /// The revision that the next committed change gets.
    #[must_use]
    pub fn next(self) -> Revision {
        Revision(self.0.saturating_add(1))
    }
}

/// Place in the whole log: strictly rising, with gaps. Compare positions; never subtract them.
/// 0 stands before the first record.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct Position(pub u64);

impl Position {
    /// Before the first record of any log.
    pub const START: Position = Position(0);
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map($name)
            }
        }
    };
}

uuid_id! {
    /// One command, and so at most one record of the log. From `Idempotency-Key`, else made by the service.
    CommandId
}
uuid_id! {
    /// One live router instance in one frontend, as that frontend lists it. Recreated routers get a new one.
    RouterId
}
uuid_id! {
    /// One policy, derived from its kind and scope (UUIDv5 of its subject). For a `worker_selection` policy of an exact
    /// model, worker type and endpoint in any group it is also the fleet-wide `router_id` of the façade.
    PolicyId
}
uuid_id! {
    /// Identity of one log. A log that was made anew has another, even under the same name.
    LogId
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Milliseconds since 1970-01-01T00:00:00Z, written as RFC 3339 in UTC with three decimals.
/// Range: years 1970 to 9998.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

/// A text that is no RFC 3339 time between 1970 and 9998.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 time between the years 1970 and 9998: {0:?}")]
pub struct BadTime(pub String);

impl Timestamp {
    const MAX_MS: u64 = 253_370_764_799_999;

    /// From milliseconds since the epoch; later times become the last one that can be written (the end of 9998).
    #[must_use]
    pub fn from_unix_ms(ms: u64) -> Timestamp {
        Timestamp(ms.min(Self::MAX_MS))
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub fn unix_ms(self) -> u64 {
        self.0
    }

    /// Milliseconds from `earlier` to `self`; 0 when the clock went back. Ages are never negative.
    #[must_use]
    pub fn since_ms(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = i64::try_from(self.0).unwrap_or(0);
        match jiff::Timestamp::from_millisecond(ms) {
            Ok(at) => write!(f, "{at:.3}"),
            // Cannot happen: the constructor bounds the value.
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

impl FromStr for Timestamp {
    type Err = BadTime;
    fn from_str(text: &str) -> Result<Self, BadTime> {
        let at: jiff::Timestamp = text.parse().map_err(|_| BadTime(text.to_owned()))?;
        u64::try_from(at.as_millisecond())
            .ok()
            .filter(|ms| *ms <= Self::MAX_MS)
            .map(Timestamp)
            .ok_or_else(|| BadTime(text.to_owned()))
    }
}

/// A 32-byte SHA-256, written as 64 lowercase hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The hash that stands before the first record.
    pub const ZERO: Hash = Hash([0; 32]);

    /// SHA-256 over the parts, each preceded by its length (8 bytes, big-endian), so that no two lists of parts collide.
    #[must_use]
    pub fn of(parts: &[&[u8]]) -> Hash {
        use sha2::Digest as _;
        let mut sum = sha2::Sha256::new();
        for part in parts {
            sum.update((part.len() as u64).to_be_bytes());
            sum.update(part);
        }
        Hash(sum.finalize().into())
    }
}

/// A text that is not 64 lowercase hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not 64 lowercase hex digits")]
pub struct BadHash;

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Hash {
    type Err = BadHash;
    fn from_str(text: &str) -> Result<Self, BadHash> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(BadHash);
        }
        let mut out = [0; 32];
        for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = hex_digit(pair[0]).ok_or(BadHash)? << 4 | hex_digit(pair[1]).ok_or(BadHash)?;
        }
        Ok(Hash(out))
    }
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

macro_rules! text_serde {
    ($name:ident, $expected:literal, $format:literal) => {
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "format": $format, "description": $expected })
            }
        }
    };
}

text_serde!(Timestamp, "RFC 3339, UTC, milliseconds", "date-time");
text_serde!(Hash, "SHA-256 as 64 lowercase hex digits", "sha-256");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back_and_ages_are_never_negative() {
        for ms in [0, 1, 999, 1_796_017_859_123, Timestamp::MAX_MS] {
            let at = Timestamp::from_unix_ms(ms);
            assert_eq!(at.to_string().parse::<Timestamp>(), Ok(at), "{at}");
        }
        assert_eq!(
            Timestamp::from_unix_ms(1_500).to_string(),
            "1970-01-01T00:00:01.500Z"
        );
        assert_eq!(
            Timestamp::from_unix_ms(5).since_ms(Timestamp::from_unix_ms(9)),
            0
        );
        for bad in ["", "yesterday", "1969-12-31T23:59:59Z", "2026-11-30"] {
            assert!(bad.parse::<Timestamp>().is_err(), "{bad}");
        }
    }

    #[test]
    fn hashes_read_back_and_depend_on_the_split() {
        let hash = Hash::of(&[b"ab", b"c"]);
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_ne!(hash, Hash::of(&[b"a", b"bc"]));
        assert!("xyz".parse::<Hash>().is_err());
        assert!(hash.to_string().to_uppercase().parse::<Hash>().is_err());
    }
}
