//! The `tokens` section: objects owned by the programs that wrote them. Only `type` and `keyslots`
//! are read here; all other fields are preserved.

use super::Fields;
use crate::error::{Error, ErrorKind, Result};
use crate::json::{self, Json, Object};

#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    kind: String,
    keyslots: Vec<u32>,
    object: Object,
}

impl Token {
    /// Parses a token from its JSON text: an object with at least `type` (a string) and `keyslots`
    /// (an array of strings that are numbers).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for anything else, and for types that begin with `luks2-`,
    /// which are reserved.
    pub fn from_json(text: &str) -> Result<Token> {
        let argument = |e: Error| Error::new(ErrorKind::InvalidArgument, e.to_string());
        let (value, len) = json::parse(text).map_err(argument)?;
        let Json::Object(object) = value else {
            return Err(Error::argument("a token must be a JSON object"));
        };
        if len != text.len() {
            return Err(Error::argument(
                "trailing text after the JSON object of the token",
            ));
        }
        let token = Token::read(&Fields::new("token", &object)).map_err(argument)?;
        if token.kind.starts_with("luks2-") {
            return Err(Error::argument(
                "token types that begin with luks2- are reserved",
            ));
        }
        Ok(token)
    }

    pub(super) fn read(fields: &Fields<'_>) -> Result<Token> {
        Ok(Token {
            kind: fields.str("type")?.to_owned(),
            keyslots: fields.numbers("keyslots")?,
            object: fields.inner().clone(),
        })
    }

    /// Returns the type of the token, such as `evfs-seal`.
    pub fn token_type(&self) -> &str {
        &self.kind
    }

    /// Lists the keyslots that the token belongs to.
    pub fn keyslots(&self) -> &[u32] {
        &self.keyslots
    }

    /// Encodes the object as compact JSON text; keys, numbers and escapes keep their spelling.
    pub fn to_json(&self) -> String {
        self.object.encode()
    }

    pub(crate) fn object(&self) -> &Object {
        &self.object
    }
}
