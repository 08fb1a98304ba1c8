//! One event of the log, in its forms.

use super::codes;
use serde_json::{Map, Value, json};
use std::fmt::{self, Write as _};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// An event.
pub struct Entry {
    level: Level,
    /// Module that reports the event.
    target: String,
    /// Code, if the event has one.
    code: Option<&'static str>,
    /// Place in the source.
    source: Option<(&'static str, u32)>,
    /// Message without the fields.
    message: String,
    fields: Vec<(&'static str, Value)>,
    /// Message and fields, on one line and without control characters.
    rendered: String,
}

impl Entry {
    /// Collects the parts of an event.
    pub fn of(event: &Event<'_>) -> Entry {
        let about = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut rendered = String::new();
        let _ = DefaultFields::new().format_fields(Writer::new(&mut rendered), event);
        Entry {
            level: *about.level(),
            target: fields.target.unwrap_or_else(|| about.target().to_owned()),
            code: codes::of_event(about.name()),
            source: about.file().zip(about.line()),
            message: fields.message,
            fields: fields.others,
            rendered: rendered.replace('\n', "\\n").replace('\r', "\\r"),
        }
    }

    pub fn level(&self) -> Level {
        self.level
    }

    pub fn target(&self) -> &str {
        &self.target
    }

    pub fn code(&self) -> Option<&'static str> {
        self.code
    }

    pub fn source(&self) -> Option<(&'static str, u32)> {
        self.source
    }

    pub fn fields(&self) -> &[(&'static str, Value)] {
        &self.fields
    }

    /// Returns code, message and fields.
    pub fn summary(&self) -> String {
        match self.code {
            Some(code) => format!("{code} {}", self.rendered),
            None => self.rendered.clone(),
        }
    }

    /// Formats the event as a line of text.
    pub fn text(&self) -> String {
        let mut line = now();
        let _ = write!(line, " {:>5} {}: ", self.level.as_str(), self.target);
        line + &self.summary()
    }

    /// Formats the event as a line of JSON.
    pub fn json(&self) -> String {
        let fields = self.fields.iter();
        let fields: Map<String, Value> = fields
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        json!({
            "time": now(),
            "level": self.level.as_str(),
            "event": self.code,
            "message": self.message,
            "target": self.target,
            "pid": std::process::id(),
            "fields": fields,
        })
        .to_string()
    }
}

/// Formats the current time as RFC 3339 does.
fn now() -> String {
    let mut text = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    /// Target of an event of the crate `log`, whose metadata does not have it.
    target: Option<String>,
    others: Vec<(&'static str, Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        let text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        match field.name() {
            "message" => self.message = text(value),
            "log.target" => self.target = Some(text(value)),
            name if name.starts_with("log.") => {}
            name => self.others.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt};

    /// Keeps the entries of all events.
    struct Keep(Arc<Mutex<Vec<Entry>>>);

    impl<S: tracing::Subscriber> Layer<S> for Keep {
        fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
            self.0.lock().unwrap().push(Entry::of(event));
        }
    }

    /// Returns the entry of the event that `report` reports.
    pub fn entry(report: impl FnOnce()) -> Entry {
        let kept = Arc::default();
        let log = tracing_subscriber::registry().with(Keep(Arc::clone(&kept)));
        tracing::subscriber::with_default(log, report);
        kept.lock().unwrap().pop().expect("an event")
    }

    #[test]
    fn an_event_is_one_line_in_each_form() {
        let entry = entry(|| {
            let volume = "disk";
            tracing::info!(name: "EVFS-0101", volume, count = 3_u64, "no space\nleft\x1b[2J");
        });
        let text = entry.text();
        let expected = "EVFS-0101 no space\\nleft\\x1b[2J volume=\"disk\" count=3";
        assert!(text.ends_with(expected), "{text}");
        assert!(text.contains("  INFO "), "{text}");
        let line = entry.json();
        assert_eq!(line.lines().count(), 1, "{line}");
        let json: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(json["event"], "EVFS-0101");
        assert_eq!(json["message"], "no space\nleft\x1b[2J");
        assert_eq!(json["fields"], json!({ "volume": "disk", "count": 3 }));
        assert_eq!(json["level"], "INFO");
    }

    #[test]
    fn an_event_without_a_code_has_none() {
        let entry = entry(|| tracing::info!("stopping"));
        assert_eq!(entry.code(), None);
        assert!(entry.text().ends_with(": stopping"), "{}", entry.text());
        let json: Value = serde_json::from_str(&entry.json()).unwrap();
        assert_eq!(json["event"], Value::Null);
    }
}
