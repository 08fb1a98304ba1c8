//! Input of the message authentication codes of a header.
//!
//! There are two parts, because two kinds of change must be distinguished: only an attacker changes
//! how the data is encrypted, but any administrator may add a keyslot with any tool.
//!
//! The bytes depend on the meaning of the header and not on its spelling: keys are sorted, white
//! space and escapes are normalized. Sequence ids, salts and sizes of areas are not included: they
//! change without a change of meaning. Separators keep one value from passing for another.

use crate::Header;
use crate::json::{Json, Object};

impl Header {
    /// Encodes UUID, segments, their digests (without the lists of keyslots), flags and
    /// requirements: everything that determines how the data is read. Constant until the volume is
    /// reencrypted or its flags are changed.
    pub fn canonical_core(&self) -> Vec<u8> {
        let document = self.metadata.document();
        let config = self.object("config");
        let settings = ["flags", "requirements"]
            .into_iter()
            .fold(Object::new(), |all, key| {
                match config.and_then(|c| c.get(key)) {
                    Some(value) => all.with(key, value.clone()),
                    None => all,
                }
            });
        let mut out = String::from("evfs luks2 core 1\n");
        Json::string(self.uuid()).canonical_into(&mut out);
        out.push('\n');
        document
            .get("segments")
            .unwrap_or(&Json::Null)
            .canonical_into(&mut out);
        out.push('\n');
        self.digests(has_segments, |key| key != "keyslots")
            .canonical_into(&mut out);
        out.push('\n');
        Json::Object(settings).canonical_into(&mut out);
        out.into_bytes()
    }

    /// Encodes everything that determines which keys open the volume: keyslots, the lists of
    /// keyslots of the digests, the digests of keys other than the volume key (added and removed
    /// with unbound keyslots), and all tokens except those of the types in `without`.
    pub fn canonical_keys(&self, without: &[&str]) -> Vec<u8> {
        let document = self.metadata.document();
        let tokens = self.metadata.tokens().iter();
        let tokens = tokens.filter(|(_, t)| !without.contains(&t.token_type()));
        let tokens = tokens.fold(Object::new(), |all, (number, token)| {
            all.with(&number.to_string(), Json::Object(token.object().clone()))
        });
        let mut out = String::from("evfs luks2 keys 1\n");
        document
            .get("keyslots")
            .unwrap_or(&Json::Null)
            .canonical_into(&mut out);
        out.push('\n');
        self.digests(has_segments, |key| key == "keyslots")
            .canonical_into(&mut out);
        out.push('\n');
        self.digests(|digest| !has_segments(digest), |_| true)
            .canonical_into(&mut out);
        out.push('\n');
        Json::Object(tokens).canonical_into(&mut out);
        out.into_bytes()
    }

    fn object(&self, key: &str) -> Option<&Object> {
        match self.metadata.document().get(key) {
            Some(Json::Object(object)) => Some(object),
            _ => None,
        }
    }

    /// Selects the digests that `select` accepts, with the fields that `keep` accepts.
    fn digests(&self, select: impl Fn(&Object) -> bool, keep: impl Fn(&str) -> bool) -> Json {
        let mut kept = Object::new();
        for (number, digest) in self.object("digests").into_iter().flat_map(Object::iter) {
            if let Json::Object(digest) = digest
                && select(digest)
            {
                let fields = digest.iter().filter(|(key, _)| keep(key));
                let fields = fields.fold(Object::new(), |all, (k, v)| all.with(k, v.clone()));
                kept.set(number, Json::Object(fields));
            }
        }
        Json::Object(kept)
    }
}

/// Checks whether a digest is that of the volume key: only a volume key has segments.
fn has_segments(digest: &Object) -> bool {
    digest.get("segments") != Some(&Json::Array(Vec::new()))
}
