//! JSON Schemas of custom parameters: which of them may be registered, and how they are used.
//!
//! A schema comes from a client and is run against values from clients, in the middle of a write. So whatever could take
//! for ever, or fetch something, is refused before anything is compiled: other dialects, references out of the schema or in
//! a circle, references that multiply, patterns that need backtracking or grow large.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ParameterName, is_built_in};
use crate::rejection::Rejection;

/// Bound: a registry of 128 schemas stays below NATS's default message size of 1 MiB.
const SCHEMA_BYTES_MAX: usize = 4_096;
/// Bound: values in a schema once every reference is written out. What a value of 16 KiB costs grows with this.
const NODES_MAX: usize = 2_000;
/// Bound: nesting of a schema once every reference is written out. Some keywords look at what is below them twice.
const DEPTH_MAX: usize = 24;
/// Bound: patterns in a schema.
const PATTERNS_MAX: usize = 16;
/// Bound: one pattern, compiled, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Judges the schema of a custom parameter.
///
/// # Errors
/// [`Rejection::InvalidSchema`] when the name is a built-in one, or the schema is not one, too large, refers elsewhere, or
/// could take too long to run.
pub fn check_schema(name: &ParameterName, schema: &Value) -> Result<(), Rejection> {
    let refuse = |why: String| {
        Err(Rejection::InvalidSchema {
            name: name.to_string(),
            why,
        })
    };
    if is_built_in(name.as_str()) {
        return refuse("is the name of a built-in parameter".to_owned());
    }
    match compile(schema) {
        Ok(_) => Ok(()),
        Err(why) => refuse(why),
    }
}

/// A schema, ready to run. Judged here again at every use: a log may hold what an earlier version took.
pub(super) fn compile(schema: &Value) -> Result<jsonschema::Validator, String> {
    let size = schema.to_string().len();
    if size > SCHEMA_BYTES_MAX {
        return Err(format!(
            "is {size} bytes long, at most {SCHEMA_BYTES_MAX} are allowed"
        ));
    }
    if !schema.is_object() {
        return Err("is not a JSON object".to_owned());
    }
    Survey::of(schema)?;
    jsonschema::options()
        .with_draft(jsonschema::Draft::Draft202012)
        .with_pattern_options(jsonschema::PatternOptions::regex().size_limit(PATTERN_BYTES_MAX))
        .build(schema)
        .map_err(|why| why.to_string())
}

/// How large a part of a schema is with its references written out.
#[derive(Clone, Copy)]
struct Extent {
    nodes: usize,
    depth: usize,
}

struct Survey<'a> {
    root: &'a Value,
    /// Of each reference; `None` while it is looked at.
    references: BTreeMap<&'a str, Option<Extent>>,
    patterns: usize,
}

impl<'a> Survey<'a> {
    fn of(root: &'a Value) -> Result<(), String> {
        if let Some(dialect) = root.get("$schema").filter(|found| *found != DIALECT) {
            return Err(format!("is of dialect {dialect}, only {DIALECT} is taken"));
        }
        let mut survey = Survey {
            root,
            references: BTreeMap::new(),
            patterns: 0,
        };
        survey.extent(root).map(|_| ())
    }

    /// Everything counts, also what is no schema (a name in `properties`, an item of `enum`): too strict is harmless here.
    fn extent(&mut self, part: &'a Value) -> Result<Extent, String> {
        let mut extent = Extent { nodes: 1, depth: 0 };
        match part {
            Value::Object(fields) => {
                for (key, value) in fields {
                    let below = match (key.as_str(), value) {
                        ("$ref", Value::String(to)) => self.reference(to)?,
                        ("pattern", Value::String(pattern)) => self.pattern(pattern)?,
                        ("patternProperties", Value::Object(patterns)) => {
                            for pattern in patterns.keys() {
                                self.pattern(pattern)?;
                            }
                            self.extent(value)?
                        }
                        ("$schema", _) if std::ptr::eq(part, self.root) => self.extent(value)?,
                        (
                            "$schema" | "$id" | "$anchor" | "$dynamicAnchor" | "$dynamicRef"
                            | "$recursiveRef" | "$recursiveAnchor" | "$vocabulary",
                            _,
                        ) => return Err(format!("has {key}, which is not taken")),
                        _ => self.extent(value)?,
                    };
                    add(&mut extent, below)?;
                }
            }
            Value::Array(items) => {
                for item in items {
                    let below = self.extent(item)?;
                    add(&mut extent, below)?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        Ok(extent)
    }

    fn reference(&mut self, to: &'a str) -> Result<Extent, String> {
        match self.references.get(to) {
            Some(Some(known)) => return Ok(*known),
            Some(None) => return Err(format!("refers to itself through {to:?}")),
            None => {}
        }
        let target = to
            .strip_prefix('#')
            // Percent signs would need another round of decoding, with another chance to be understood differently.
            .filter(|pointer| !pointer.contains('%'))
            .and_then(|pointer| self.root.pointer(pointer))
            .ok_or_else(|| format!("refers to {to:?}, which is not within it"))?;
        self.references.insert(to, None);
        let extent = self.extent(target)?;
        self.references.insert(to, Some(extent));
        Ok(extent)
    }

    fn pattern(&mut self, pattern: &str) -> Result<Extent, String> {
        self.patterns += 1;
        if self.patterns > PATTERNS_MAX {
            return Err(format!("has more than {PATTERNS_MAX} patterns"));
        }
        regex::RegexBuilder::new(pattern)
            .size_limit(PATTERN_BYTES_MAX)
            .build()
            .map_err(|why| {
                format!("has a pattern that cannot be used ({why}); look-around and back references are not taken")
            })?;
        Ok(Extent { nodes: 1, depth: 0 })
    }
}

fn add(extent: &mut Extent, below: Extent) -> Result<(), String> {
    extent.nodes = extent.nodes.saturating_add(below.nodes);
    extent.depth = extent.depth.max(below.depth + 1);
    if extent.nodes > NODES_MAX {
        return Err(format!(
            "has more than {NODES_MAX} values, with its references written out"
        ));
    }
    if extent.depth > DEPTH_MAX {
        return Err(format!(
            "is nested deeper than {DEPTH_MAX}, with its references written out"
        ));
    }
    Ok(())
}
