//! JSON documents that commands print: their names, their versions and their schemas.
//!
//! Each document begins with the key `schema`, whose value is the name and the version of its form,
//! such as `evfs/status/1`. The schema of a form comes from the type that is serialized. Answers of
//! other processes are passed on as received; the tests check that they have the form.
//!
//! **Invariant:** a schema names every key of its document, and refuses all others.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::marker::PhantomData;

/// Key of each document with the name and the version of its form.
const KEY: &str = "schema";

/// Key of the document of a dry run.
const DRY_RUN: &str = "dry_run";

/// A document of the form `T`.
pub struct Document<T> {
    schema: &'static str,
    form: PhantomData<fn() -> T>,
}

impl<T> Document<T> {
    /// Declares a document; `schema` is its name and its version.
    pub const fn new(schema: &'static str) -> Document<T> {
        Document {
            schema,
            form: PhantomData,
        }
    }

    /// Adds the name and the version to an answer of another process, which has the form `T`
    /// unless that process is of another version.
    pub fn of_answer(&self, answer: &Value) -> Value {
        match answer {
            Value::Object(content) => versioned(self.schema, content.clone()),
            other => other.clone(),
        }
    }
}

impl<T: Serialize> Document<T> {
    /// Builds the document with this content.
    pub fn of(&self, content: &T) -> Value {
        match serde_json::to_value(content).expect("names and numbers become JSON") {
            Value::Object(content) => versioned(self.schema, content),
            other => other,
        }
    }
}

fn versioned(schema: &str, content: Map<String, Value>) -> Value {
    let mut all = Map::new();
    all.insert(KEY.to_owned(), schema.into());
    all.extend(content);
    Value::Object(all)
}

/// Marks a document as that of a dry run.
pub(crate) fn of_dry_run(mut document: Value) -> Value {
    if let Some(document) = document.as_object_mut() {
        document.insert(DRY_RUN.to_owned(), true.into());
    }
    document
}

/// A document whose schema is published.
pub struct Published {
    /// Name and version of its form.
    pub schema: &'static str,
    /// Commands that print it, without the name of the program.
    pub commands: &'static [&'static str],
    generate: fn(&'static str) -> Schema,
}

impl Published {
    /// Publishes a document of `commands`.
    pub const fn of<T: JsonSchema>(
        document: &Document<T>,
        commands: &'static [&'static str],
    ) -> Published {
        Published {
            schema: document.schema,
            commands,
            generate: generate::<T>,
        }
    }

    /// Returns the name without the version, which is also the name of the file of the schema.
    pub fn name(&self) -> &'static str {
        let mut parts = self.schema.rsplit('/');
        parts.nth(1).unwrap_or(self.schema)
    }

    /// Generates the schema (JSON Schema, draft 2020-12), as text.
    pub fn text(&self) -> String {
        let schema = (self.generate)(self.schema);
        serde_json::to_string_pretty(&schema).expect("a schema serializes")
    }
}

fn generate<T: JsonSchema>(id: &'static str) -> Schema {
    let settings = SchemaSettings::draft2020_12()
        .for_serialize()
        .with_transform(RecursiveTransform(close));
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    let object = schema.ensure_object();
    object.insert("title".to_owned(), id.into());
    let mut properties = Map::new();
    let about = "Name and version of the form of this document";
    properties.insert(
        KEY.to_owned(),
        json!({ "description": about, "type": "string", "const": id }),
    );
    if let Some(Value::Object(own)) = object.get("properties") {
        let own = own.iter().filter(|(key, _)| *key != KEY);
        properties.extend(own.map(|(key, form)| (key.clone(), form.clone())));
    }
    let about = "Present in a dry run: nothing was changed, and this would be the result";
    properties.insert(
        DRY_RUN.to_owned(),
        json!({ "description": about, "type": "boolean", "const": true }),
    );
    let mut required = vec![Value::from(KEY)];
    if let Some(Value::Array(own)) = object.get("required") {
        required.extend(own.iter().filter(|key| *key != KEY).cloned());
    }
    object.insert("properties".to_owned(), properties.into());
    object.insert("required".to_owned(), required.into());
    schema
}

/// Refuses keys that a form does not name.
fn close(schema: &mut Schema) {
    if let Some(object) = schema.as_object_mut()
        && object.contains_key("properties")
        && !object.contains_key("additionalProperties")
    {
        object.insert("additionalProperties".to_owned(), false.into());
    }
}

/// Content of the document of an error.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Failure {
    /// Message: what failed, why, and what to do next.
    pub error: String,
    /// Exit code of the command.
    pub code: u8,
}

/// An error, printed instead of the document of the command.
pub const ERROR: Document<Failure> = Document::new("evfs/error/1");

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, JsonSchema)]
    struct Example {
        /// Name of the example.
        name: String,
        parts: Vec<Part>,
    }

    #[derive(Serialize, JsonSchema)]
    struct Part {
        size: Option<u64>,
    }

    const EXAMPLE: Document<Example> = Document::new("evfs/example/7");

    #[test]
    fn a_document_begins_with_its_name_and_version() {
        let parts = vec![Part { size: None }];
        let name = "x".to_owned();
        let text = EXAMPLE.of(&Example { name, parts }).to_string();
        let expected = r#"{"schema":"evfs/example/7","name":"x","parts":[{"size":null}]}"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn a_schema_names_every_key_and_refuses_others() {
        let published = Published::of(&EXAMPLE, &["example"]);
        assert_eq!(published.name(), "example");
        let schema: Value = serde_json::from_str(&published.text()).unwrap();
        assert_eq!(schema["required"], json!(["schema", "name", "parts"]));
        assert_eq!(schema["properties"]["schema"]["const"], "evfs/example/7");
        assert_eq!(
            schema["properties"]["name"]["description"],
            "Name of the example."
        );
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(schema["properties"]["dry_run"]["const"], true);
        let part = &schema["$defs"]["Part"];
        assert_eq!(part["additionalProperties"], false);
        assert_eq!(part["required"], json!(["size"]));
    }

    #[test]
    fn the_document_of_a_dry_run_is_marked_at_its_end() {
        let text = of_dry_run(json!({ "schema": "evfs/example/7", "name": "x" })).to_string();
        let expected = r#"{"schema":"evfs/example/7","name":"x","dry_run":true}"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn every_answer_of_another_version_is_passed_on() {
        assert_eq!(EXAMPLE.of_answer(&Value::Null), Value::Null);
        let answer = json!({ "new": true });
        let expected = json!({ "schema": "evfs/example/7", "new": true });
        assert_eq!(EXAMPLE.of_answer(&answer), expected);
    }
}
