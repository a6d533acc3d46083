//! Opaque names: of models, groups, agents, frontends and parts of an endpoint.
//!
//! Owns: what a name may be, and its reversible form as one NATS subject token.
//! Never does: normalise. Composed and decomposed accents are two names.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The longest name, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 512;

/// UTF-8 of 1 to 512 bytes without control characters (Unicode category Cc); anything else is ordinary.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(String);

/// Why a text is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Nothing in it.
    #[error("must not be empty")]
    Empty,
    /// Longer than [`NAME_BYTES_MAX`].
    #[error("is {0} bytes long, at most {NAME_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// A control character, at this byte.
    #[error("has a control character at byte {0}")]
    Control(usize),
}

impl Name {
    /// Checks a text.
    ///
    /// # Errors
    /// [`BadName`]: empty, too long, or with a control character.
    pub fn new(text: impl Into<String>) -> Result<Name, BadName> {
        let text = text.into();
        if text.is_empty() {
            return Err(BadName::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(BadName::TooLong(text.len()));
        }
        match text.char_indices().find(|(_, c)| c.is_control()) {
            Some((at, _)) => Err(BadName::Control(at)),
            None => Ok(Name(text)),
        }
    }

    /// The name as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as one subject token: letters, digits, `-` and `_` as they are, every other byte as `=XX`; names whose
    /// token would pass 255 characters as `==` and base64url. At most 685 characters. The inverse is [`Name::from_token`].
    #[must_use]
    pub fn to_token(&self) -> String {
        let escaped = escape(self.0.as_bytes());
        if escaped.len() <= ESCAPED_MAX {
            return escaped;
        }
        format!("=={}", URL_SAFE_NO_PAD.encode(self.0.as_bytes()))
    }

    /// The inverse of [`Name::to_token`]; `None` for anything that it does not make.
    #[must_use]
    pub fn from_token(token: &str) -> Option<Name> {
        let bytes = match token.strip_prefix("==") {
            Some(long) => URL_SAFE_NO_PAD.decode(long).ok()?,
            None => unescape(token)?,
        };
        let name = Name::new(String::from_utf8(bytes).ok()?).ok()?;
        // One name, one token: other spellings are refused, or two subjects would hold one policy.
        (name.to_token() == token).then_some(name)
    }
}

/// Bound: a name of plain text stays readable in a subject; all five parts of a scope stay well below the 4,096 bytes of
/// NATS's default `max_control_line`, whatever the names are.
const ESCAPED_MAX: usize = 255;

fn escape(bytes: &[u8]) -> String {
    use fmt::Write as _;
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            out.push(char::from(*byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "={byte:02X}");
        }
    }
    out
}

fn unescape(token: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(token.len());
    let mut rest = token.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'=' {
            let (hex, after) = tail.split_at_checked(2)?;
            out.push(u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?);
            rest = after;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    Some(out)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for Name {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Name, BadName> {
        Name::new(text)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Name::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Name {
    fn schema_name() -> Cow<'static, str> {
        "Name".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX,
            "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]+$",
            "description": "UTF-8 of 1 to 512 bytes without control characters; otherwise opaque"
        })
    }
}

macro_rules! named {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(pub Name);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = BadName;
            fn from_str(text: &str) -> Result<$name, BadName> {
                Name::new(text).map($name)
            }
        }
    };
}

named! {
    /// One agent process, stable over its restarts (it is kept in the agent's state folder).
    AgentId
}
named! {
    /// One frontend as its agent knows it: its base URL, or a name for one in the same process.
    FrontendId
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_spelling_of_a_model_is_kept_apart_and_read_back() {
        let names = [
            "meta-llama/Llama-3.1-8B",
            "a b",
            "a.b",
            "*",
            ">",
            "$SYS.x",
            "a/b c",
            "=",
            "==",
            "=2F",
            "é",
            "e\u{301}",
            "🚀",
            "a",
            "A",
            "-",
            "_",
            " ",
        ];
        let tokens: std::collections::BTreeSet<String> = names
            .iter()
            .map(|n| Name::new(*n).unwrap().to_token())
            .collect();
        assert_eq!(tokens.len(), names.len());
        for name in names {
            let name = Name::new(name).unwrap();
            assert_eq!(Name::from_token(&name.to_token()), Some(name));
        }
        assert_eq!(
            Name::new("meta-llama/Llama-3.1-8B").unwrap().to_token(),
            "meta-llama=2FLlama-3=2E1-8B"
        );
    }

    #[test]
    fn control_characters_and_long_names_are_refused() {
        assert_eq!(Name::new(""), Err(BadName::Empty));
        assert_eq!(Name::new("a\0b"), Err(BadName::Control(1)));
        assert_eq!(Name::new("tab\there"), Err(BadName::Control(3)));
        assert_eq!(Name::new("nl\n"), Err(BadName::Control(2)));
        assert_eq!(Name::new("x".repeat(513)), Err(BadName::TooLong(513)));
        assert!(Name::new("é".repeat(256)).unwrap().to_token().len() <= 685);
    }

    #[test]
    fn other_spellings_of_a_token_are_refused() {
        for token in [
            "", "=", "=2", "=61", "=2f", "==YQ", "a.b", "a b", "=00", "=FF",
        ] {
            assert_eq!(Name::from_token(token), None, "{token:?}");
        }
    }

    proptest! {
        #[test]
        fn any_name_reads_back(text in "\\PC{1,170}") {
            prop_assume!(text.len() <= NAME_BYTES_MAX && !text.is_empty());
            if let Ok(name) = Name::new(text) {
                let token = name.to_token();
                prop_assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_=".contains(&b)));
                prop_assert_eq!(Name::from_token(&token), Some(name));
            }
        }
    }
}
