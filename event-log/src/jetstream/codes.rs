//! What a broker's error codes mean. One table; nothing else interprets a code, and nobody matches on text.

/// What a code says about one attempt to publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Publish {
    /// The subject's last record is another one. This attempt stored nothing.
    Conflict,
    /// Nothing was stored and sending it again is of no use.
    Refused,
    /// Nobody can say yet; look who holds the place, or send it again.
    Unknown,
}

/// Codes with a known meaning. Every other code is [`Publish::Unknown`]: safe, because doubt is always resolved by looking.
const PUBLISH: &[(u64, Publish, &str)] = &[
    (10071, Publish::Conflict, "wrong last sequence"),
    // Another write on this subject is between proposal and commit; it, or an earlier attempt of ours, may still fail.
    (10164, Publish::Unknown, "wrong last sequence, unresolved"),
    (10158, Publish::Unknown, "duplicate in process"),
    // Storage of the leader failed: a full disk, for example.
    (10077, Publish::Refused, "storing failed"),
    // Limits of the account or of the servers, looked at before anything is proposed.
    (10002, Publish::Refused, "account limits exceeded"),
    (10023, Publish::Refused, "insufficient resources"),
    (10028, Publish::Refused, "memory exceeded"),
    (10047, Publish::Refused, "storage exceeded"),
    (10054, Publish::Refused, "record too large"),
    (10060, Publish::Refused, "not the expected stream"),
    (10109, Publish::Refused, "stream sealed"),
    (10166, Publish::Refused, "record with an end of life"),
    (10199, Publish::Refused, "batch too large"),
];

pub(super) fn publish(code: u64) -> Publish {
    PUBLISH
        .iter()
        .find(|(known, ..)| *known == code)
        .map_or(Publish::Unknown, |(_, meaning, _)| *meaning)
}

pub(super) const STREAM_NOT_FOUND: u64 = 10059;
pub(super) const STREAM_NAME_IN_USE: u64 = 10058;
pub(super) const NO_MESSAGE_FOUND: u64 = 10037;

/// Codes that pass when the cluster has elected: asking again within the call's time is right.
pub(super) fn passes(code: u64) -> bool {
    // No leader, not the leader, JetStream not yet up, no suitable peers, offline.
    matches!(code, 10005 | 10008 | 10009 | 10076 | 10118)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_codes_are_verdicts() {
        assert_eq!(publish(10071), Publish::Conflict);
        for code in [
            10002, 10023, 10028, 10047, 10077, 10054, 10060, 10109, 10166, 10199,
        ] {
            assert_eq!(publish(code), Publish::Refused, "{code}");
        }
        for code in [10164, 10158, 10008, 10009, 0, 99_999] {
            assert_eq!(publish(code), Publish::Unknown, "{code}");
        }
    }

    #[test]
    fn no_code_stands_twice() {
        let codes: std::collections::BTreeSet<u64> =
            PUBLISH.iter().map(|(code, ..)| *code).collect();
        assert_eq!(codes.len(), PUBLISH.len());
    }
}
