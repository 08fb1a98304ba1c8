//! The published schemas of JSON documents, and a check of documents against them.
//!
//! Every document that the program prints in a test is checked. The check knows the keywords that
//! the published schemas use, and fails for any other, so that none is ignored by mistake. A test
//! compares its verdict with that of a validator of others.

use crate::root;
use serde_json::{Deserializer, Value};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the directory of the published schemas.
pub fn directory() -> PathBuf {
    root().join("docs/schemas")
}

/// Reads the published schema of a document, which its key `schema` names.
///
/// # Errors
/// The document names none, or it is not published.
pub fn of(document: &Value) -> Result<Value, String> {
    let form = document["schema"].as_str();
    let form = form.ok_or("it has no key `schema`")?;
    let name = form.rsplit('/').nth(1).unwrap_or(form);
    let file = directory().join(format!("{name}.json"));
    let text = std::fs::read_to_string(&file);
    let text = text.map_err(|e| {
        let file = file.display();
        format!("{file}: {e}; `cargo xtask schemas` writes the schemas of the program")
    })?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))
}

/// Lists the reasons why a document does not have its published form.
pub fn problems(document: &Value) -> Vec<String> {
    match of(document) {
        Ok(schema) => problems_with(&schema, document),
        Err(why) => vec![why],
    }
}

/// Lists the reasons why a document does not have the form of a schema.
pub fn problems_with(schema: &Value, document: &Value) -> Vec<String> {
    let mut check = Check {
        root: schema,
        problems: Vec::new(),
    };
    check.value(schema, document, "");
    check.problems
}

/// Reports whether a command is the program, asked for a document.
pub(crate) fn prints_documents(command: &Command) -> bool {
    let is_program = Path::new(command.get_program()).file_name() == Some(OsStr::new("evfs"));
    let args = || command.get_args().take_while(|arg| *arg != "--");
    let is_help = |arg: &OsStr| {
        ["--help", "-h", "--version", "-V", "help"]
            .map(OsStr::new)
            .contains(&arg)
    };
    is_program && args().any(|arg| arg == "--json") && !args().any(is_help)
}

/// Fails the test unless `output` consists of documents in their published forms.
pub(crate) fn check_output(command: &str, output: &str) {
    for document in Deserializer::from_str(output).into_iter::<Value>() {
        let document = document.unwrap_or_else(|e| {
            panic!("{command} printed with --json what is not JSON: {e}\n{output}")
        });
        let problems = problems(&document);
        assert!(
            problems.is_empty(),
            "{command} printed a document that is not in its published form:\n{}\n{document:#}",
            problems.join("\n")
        );
    }
}

/// A check of a document.
struct Check<'a> {
    root: &'a Value,
    problems: Vec<String>,
}

impl Check<'_> {
    fn value(&mut self, schema: &Value, value: &Value, at: &str) {
        let keywords = match schema {
            Value::Bool(true) => return,
            Value::Object(keywords) => keywords,
            other => panic!("not a schema: {other}"),
        };
        let root = self.root;
        for (keyword, operand) in keywords {
            let is_right = match keyword.as_str() {
                // Notes for people.
                "$schema" | "$defs" | "title" | "description" | "default" | "format" => true,
                "$ref" => {
                    let to = operand.as_str().and_then(|to| to.strip_prefix('#'));
                    let to = to.and_then(|to| root.pointer(to));
                    self.value(to.expect("a reference within the schema"), value, at);
                    true
                }
                "type" => match operand {
                    Value::Array(types) => types.iter().any(|one| has_type(value, one)),
                    one => has_type(value, one),
                },
                "const" => value == operand,
                "enum" => list(operand).contains(value),
                // Limits of a value of another type hold; its type is a problem of its own.
                "minimum" => value.as_f64().is_none_or(|n| Some(n) >= operand.as_f64()),
                "maximum" => value.as_f64().is_none_or(|n| Some(n) <= operand.as_f64()),
                "minItems" => length(value).is_none_or(|n| Some(n) >= operand.as_u64()),
                "maxItems" => length(value).is_none_or(|n| Some(n) <= operand.as_u64()),
                "anyOf" => self.count(operand, value) >= 1,
                "oneOf" => self.count(operand, value) == 1,
                "items" => {
                    let after = keywords
                        .get("prefixItems")
                        .map_or(0, |first| list(first).len());
                    self.items(operand, value, at, after);
                    true
                }
                "prefixItems" => {
                    let pairs = list(operand)
                        .iter()
                        .zip(value.as_array().into_iter().flatten());
                    for (index, (schema, item)) in pairs.enumerate() {
                        self.value(schema, item, &format!("{at}/{index}"));
                    }
                    true
                }
                "required" => {
                    self.required(operand, value, at);
                    true
                }
                "properties" => {
                    for (key, schema) in operand.as_object().expect("schemas by key") {
                        if let Some(value) = value.get(key) {
                            self.value(schema, value, &format!("{at}/{key}"));
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    self.others(operand, keywords.get("properties"), value, at);
                    true
                }
                other => panic!("the check of documents does not know the keyword `{other}`"),
            };
            if !is_right {
                let problem = format!("{at}: {value} is not as `{keyword}`: {operand} requires");
                self.problems.push(problem);
            }
        }
    }

    /// Counts the schemas whose form a value has.
    fn count(&self, schemas: &Value, value: &Value) -> usize {
        let fits = |schema: &&Value| {
            let mut check = Check {
                root: self.root,
                problems: Vec::new(),
            };
            check.value(schema, value, "");
            check.problems.is_empty()
        };
        list(schemas).iter().filter(fits).count()
    }

    fn items(&mut self, schema: &Value, value: &Value, at: &str, after: usize) {
        let items = value.as_array().into_iter().flatten().enumerate();
        for (index, item) in items.skip(after) {
            self.value(schema, item, &format!("{at}/{index}"));
        }
    }

    fn required(&mut self, keys: &Value, value: &Value, at: &str) {
        let keys = list(keys).iter().filter_map(Value::as_str);
        for key in keys.filter(|key| value.is_object() && value.get(key).is_none()) {
            self.problems
                .push(format!("{at}: the key `{key}` is missing"));
        }
    }

    /// Checks the values of the keys that `known` does not name.
    fn others(&mut self, schema: &Value, known: Option<&Value>, value: &Value, at: &str) {
        let known = |key: &str| known.is_some_and(|known| known.get(key).is_some());
        let all = value.as_object().into_iter().flatten();
        for (key, value) in all.filter(|(key, _)| !known(key)) {
            if *schema == Value::Bool(false) {
                self.problems
                    .push(format!("{at}: the key `{key}` is not documented"));
            } else {
                self.value(schema, value, &format!("{at}/{key}"));
            }
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list in a schema")
}

fn length(value: &Value) -> Option<u64> {
    value.as_array().map(|items| items.len() as u64)
}

fn has_type(value: &Value, name: &Value) -> bool {
    match name.as_str().expect("the name of a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("`{other}` is no type of JSON"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({
            "title": "evfs/example/1",
            "type": "object",
            "properties": {
                "schema": { "type": "string", "const": "evfs/example/1" },
                "size": { "type": ["integer", "null"], "format": "uint64", "minimum": 0 },
                "parts": { "type": "array", "items": { "$ref": "#/$defs/Part" } },
                "pair": {
                    "type": "array", "minItems": 2, "maxItems": 2,
                    "prefixItems": [{ "type": "number" }, { "type": "string" }],
                },
                "names": { "type": "object", "additionalProperties": { "type": "string" } },
            },
            "required": ["schema", "size", "parts"],
            "additionalProperties": false,
            "$defs": {
                "Part": { "oneOf": [
                    { "type": "string", "enum": ["a", "b"] },
                    { "type": "string", "const": "c" },
                    { "anyOf": [{ "type": "boolean" }, { "type": "null" }] },
                ] },
            },
        })
    }

    #[test]
    fn a_document_in_its_form_has_no_problems() {
        let document = json!({
            "schema": "evfs/example/1", "size": 1, "parts": ["a", "c", true, null],
            "pair": [0.5, "x"], "names": { "any": "text" },
        });
        assert_eq!(problems_with(&schema(), &document), Vec::<String>::new());
        let document = json!({ "schema": "evfs/example/1", "size": null, "parts": [] });
        assert_eq!(problems_with(&schema(), &document), Vec::<String>::new());
    }

    #[test]
    fn every_difference_from_the_form_is_a_problem() {
        let right = json!({ "schema": "evfs/example/1", "size": 1, "parts": [] });
        for (key, value) in [
            ("schema", json!("evfs/example/2")),
            ("size", json!(-1)),
            ("size", json!("1")),
            ("size", json!(1.5)),
            ("parts", json!({})),
            ("parts", json!(["d"])),
            ("parts", json!([1])),
            ("pair", json!([1])),
            ("pair", json!([1, 2])),
            ("pair", json!([1, "x", 3])),
            ("names", json!({ "any": 1 })),
            ("new", json!(1)),
        ] {
            let mut wrong = right.clone();
            wrong[key] = value;
            assert_eq!(problems_with(&schema(), &wrong).len(), 1, "{wrong}");
        }
        let missing = json!({ "schema": "evfs/example/1", "size": 1 });
        let expected = [": the key `parts` is missing"];
        assert_eq!(problems_with(&schema(), &missing), expected);
    }

    #[test]
    #[should_panic(expected = "`pattern`")]
    fn no_keyword_is_ignored() {
        let schema = json!({ "type": "string", "pattern": "^a$" });
        problems_with(&schema, &json!("b"));
    }

    #[test]
    fn a_document_without_a_name_is_refused() {
        assert_eq!(problems(&json!([1])), ["it has no key `schema`"]);
        let unknown = problems(&json!({ "schema": "evfs/unknown/1" }));
        assert!(unknown[0].contains("unknown.json"), "{unknown:?}");
    }
}
