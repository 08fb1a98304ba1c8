//! Requests and responses of HTTP/1.1, as far as this server needs them: one request for each
//! connection, with a body only if its length is stated.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Headers of a request, at most.
const HEADERS_MAX: usize = 64;

/// Headers of every response. Nothing is stored by a browser, no other page can embed or read a
/// response, and a page runs only scripts that this server sends as files.
const HEADERS: &str = "Connection: close\r\n\
     Cache-Control: no-store\r\n\
     Content-Security-Policy: default-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'; object-src 'none'\r\n\
     Cross-Origin-Opener-Policy: same-origin\r\n\
     Cross-Origin-Resource-Policy: same-origin\r\n\
     Referrer-Policy: same-origin\r\n\
     X-Content-Type-Options: nosniff\r\n\
     X-Frame-Options: DENY\r\n";

/// Method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Post,
    Other,
}

impl Method {
    /// Reports whether a request with this method changes nothing.
    pub(crate) fn reads(self) -> bool {
        matches!(self, Method::Get | Method::Head)
    }
}

/// A parsed request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// Path, without the query.
    pub(crate) path: String,
    /// Names in lower case, and values.
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the client is connected to a Unix socket.
    pub(crate) is_unix: bool,
}

impl Request {
    /// Parses the head of a request, which ends with an empty line. Returns `None` if it is not one
    /// of HTTP/1, or if a header occurs twice that must not.
    pub(crate) fn parse(head: &[u8], is_unix: bool) -> Option<Request> {
        let mut lines = std::str::from_utf8(head).ok()?.lines();
        let words: Vec<&str> = lines.next()?.split(' ').collect();
        let [method, target, version] = words[..] else {
            return None;
        };
        if !version.starts_with("HTTP/1.") || !target.starts_with('/') || method.is_empty() {
            return None;
        }
        let mut headers = Vec::new();
        for line in lines.take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':')?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || !name.chars().all(is_name) || headers.len() == HEADERS_MAX {
                return None;
            }
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let count = |wanted: &str| headers.iter().filter(|(name, _)| name == wanted).count();
        if count("host") > 1 || count("content-length") > 1 || count("transfer-encoding") > 0 {
            return None;
        }
        Some(Request {
            method: match method {
                "GET" => Method::Get,
                "HEAD" => Method::Head,
                "POST" => Method::Post,
                _ => Method::Other,
            },
            path: target.split('?').next().unwrap_or_default().to_owned(),
            headers,
            body: Vec::new(),
            is_unix,
        })
    }

    /// Returns the value of a header, given its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the length of the body in bytes; `None` if it is not a number.
    pub(super) fn body_length(&self) -> Option<usize> {
        match self.header("content-length") {
            None => Some(0),
            Some(text) if text.bytes().all(|c| c.is_ascii_digit()) => text.parse().ok(),
            Some(_) => None,
        }
    }

    /// Finds the value of a cookie.
    pub(crate) fn cookie(&self, wanted: &str) -> Option<&str> {
        let cookies = self.headers.iter().filter(|(name, _)| name == "cookie");
        let mut pairs = cookies.flat_map(|(_, value)| value.split(';'));
        pairs.find_map(|pair| {
            let (name, value) = pair.trim().split_once('=')?;
            (name == wanted).then_some(value)
        })
    }

    /// Returns the name and the port in the Host header, if the name is one of this machine itself.
    ///
    /// A browser that was led to this server by the DNS name of an attacker's page sends that name.
    pub(crate) fn loopback_host(&self) -> Option<(&str, &str)> {
        let host = self.header("host")?;
        let colon = host.rfind(':').filter(|at| !host[*at..].contains(']'));
        let (name, port) = host.split_at(colon.unwrap_or(host.len()));
        let port = port.strip_prefix(':').unwrap_or("80");
        let v6 = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
        let is_loopback = match v6 {
            Some(v6) => v6.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback()),
            None => {
                let v4 = name.parse::<Ipv4Addr>();
                name.eq_ignore_ascii_case("localhost") || v4.is_ok_and(|ip| ip.is_loopback())
            }
        };
        let is_port = !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
        (is_loopback && is_port).then_some((name, port))
    }

    /// Reports whether a script of another page sent the request, as far as the browser says so.
    pub(crate) fn is_of_another_page(&self) -> bool {
        let host = self.header("host").unwrap_or_default();
        let own = |origin: &str| {
            let place = origin.strip_prefix("http://");
            place.is_some_and(|place| place.eq_ignore_ascii_case(host))
        };
        self.header("origin").is_some_and(|origin| !own(origin))
    }
}

/// Status of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    BadRequest,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    ContentTooLarge,
    Misdirected,
    HeadTooLarge,
    Failed,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Status::Ok => "200 OK",
            Status::BadRequest => "400 Bad Request",
            Status::Forbidden => "403 Forbidden",
            Status::NotFound => "404 Not Found",
            Status::MethodNotAllowed => "405 Method Not Allowed",
            Status::ContentTooLarge => "413 Content Too Large",
            Status::Misdirected => "421 Misdirected Request",
            Status::HeadTooLarge => "431 Request Header Fields Too Large",
            Status::Failed => "500 Internal Server Error",
        }
    }
}

/// Content of a response.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    Static(&'static str),
    Shared(Arc<str>),
}

impl Body {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Body::Static(text) => text.as_bytes(),
            Body::Shared(text) => text.as_bytes(),
        }
    }
}

/// Status, headers and content of an answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: Status,
    /// Media type of the content.
    kind: &'static str,
    pub(super) body: Body,
    /// Additional headers.
    headers: Vec<(&'static str, String)>,
}

impl Response {
    pub(crate) fn new(status: Status, kind: &'static str, body: Body) -> Response {
        Response {
            status,
            kind,
            body,
            headers: Vec::new(),
        }
    }

    /// Creates a response with one line of text.
    pub(crate) fn text(status: Status, line: &'static str) -> Response {
        Response::new(status, "text/plain; charset=utf-8", Body::Static(line))
    }

    /// Refuses a method. `allowed` lists those of the path.
    pub(crate) fn only(allowed: &'static str) -> Response {
        let refused = Response::text(Status::MethodNotAllowed, "the method is not allowed here\n");
        refused.with("Allow", allowed.to_owned())
    }

    /// Adds a header.
    pub(crate) fn with(mut self, name: &'static str, value: String) -> Response {
        self.headers.push((name, value));
        self
    }

    /// Formats everything before the content.
    pub(crate) fn head(&self) -> String {
        let mut head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{HEADERS}",
            self.status.line(),
            self.kind,
            self.body.bytes().len()
        );
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head + "\r\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<Request> {
        Request::parse(text.as_bytes(), false)
    }

    #[test]
    fn requests_are_parsed_and_garbage_is_refused() {
        for (line, expected) in [
            ("GET /metrics HTTP/1.1", Some((Method::Get, "/metrics"))),
            ("GET /metrics?x=1 HTTP/1.0", Some((Method::Get, "/metrics"))),
            ("HEAD / HTTP/1.1", Some((Method::Head, "/"))),
            ("POST /login HTTP/1.1", Some((Method::Post, "/login"))),
            ("PUT /login HTTP/1.1", Some((Method::Other, "/login"))),
            ("get / HTTP/1.1", Some((Method::Other, "/"))),
            ("GET metrics HTTP/1.1", None),
            ("GET http://a/ HTTP/1.1", None),
            ("GET /metrics HTTP/2", None),
            ("GET /metrics", None),
            (" / HTTP/1.1", None),
            ("", None),
            ("a b c d", None),
        ] {
            let request = parsed(&format!("{line}\r\nHost: x\r\n\r\n"));
            let got = request.as_ref().map(|r| (r.method, r.path.as_str()));
            assert_eq!(got, expected, "{line}");
        }
        assert_eq!(Request::parse(b"\xff\xfe \x00 HTTP/1.1\r\n", false), None);
    }

    #[test]
    fn ambiguous_and_broken_headers_are_refused() {
        for headers in [
            "Host: a\r\nHost: b\r\n",
            "Content-Length: 1\r\nContent-Length: 2\r\n",
            "Transfer-Encoding: chunked\r\n",
            "no colon\r\n",
            ": no name\r\n",
            "a b: c\r\n",
            " Host: folded\r\n",
            &"A: b\r\n".repeat(HEADERS_MAX + 1),
        ] {
            let text = format!("GET / HTTP/1.1\r\n{headers}\r\n");
            assert_eq!(parsed(&text), None, "{headers}");
        }
        let length = |value: &str| {
            let text = format!("POST / HTTP/1.1\r\ncontent-length: {value}\r\n\r\n");
            parsed(&text).unwrap().body_length()
        };
        assert_eq!(length("17"), Some(17));
        for wrong in ["", "-1", "+1", "1,2", "0x10", "99999999999999999999999"] {
            assert_eq!(length(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_names_of_this_machine_are_loopback_hosts() {
        let host = |value: &str| {
            let request = parsed(&format!("GET / HTTP/1.1\r\nHost: {value}\r\n\r\n"))?;
            let (name, port) = request.loopback_host()?;
            Some(format!("{name} {port}"))
        };
        for (value, expected) in [
            ("127.0.0.1:9465", "127.0.0.1 9465"),
            ("127.0.0.1", "127.0.0.1 80"),
            ("LocalHost:1", "LocalHost 1"),
            ("[::1]:9465", "[::1] 9465"),
            ("[::1]", "[::1] 80"),
        ] {
            assert_eq!(host(value).as_deref(), Some(expected), "{value}");
        }
        for wrong in [
            "",
            "evil.example",
            "evil.example:9465",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1:evil.example",
            "192.0.2.1",
            "0.0.0.0",
            "::1",
            "[::1",
            "[::2]:1",
            "127.0.0.1:",
            "user@127.0.0.1",
        ] {
            assert_eq!(host(wrong), None, "{wrong}");
        }
        assert_eq!(
            parsed("GET / HTTP/1.1\r\n\r\n").unwrap().loopback_host(),
            None
        );
    }

    #[test]
    fn cookies_are_found_by_their_whole_name() {
        let text = "GET / HTTP/1.1\r\nCookie: xa=1; a=2;b=3\r\nCookie: c==4\r\n\r\n";
        let request = parsed(text).unwrap();
        for (name, value) in [
            ("a", Some("2")),
            ("b", Some("3")),
            ("c", Some("=4")),
            ("d", None),
        ] {
            assert_eq!(request.cookie(name), value, "{name}");
        }
    }

    #[test]
    fn a_script_of_another_page_is_recognized() {
        let is_other = |origin: &str| {
            let text = format!("POST / HTTP/1.1\r\nHost: 127.0.0.1:9\r\n{origin}\r\n\r\n");
            parsed(&text).unwrap().is_of_another_page()
        };
        assert!(!is_other("Accept: x"));
        assert!(!is_other("Origin: http://127.0.0.1:9"));
        for origin in ["http://127.0.0.1:8", "https://127.0.0.1:9", "null", ""] {
            assert!(is_other(&format!("Origin: {origin}")), "{origin}");
        }
    }

    #[test]
    fn no_part_or_change_of_a_request_causes_a_panic() {
        let whole = b"POST /login?a HTTP/1.1\r\nHost: [::1]:9\r\nCookie: a=b;c\r\n\
                      Origin: http://x\r\nContent-Length: 3\r\n\r\n";
        let examine = |bytes: &[u8]| {
            if let Some(request) = Request::parse(bytes, true) {
                let _ = (request.loopback_host(), request.cookie("a"));
                let _ = (request.is_of_another_page(), request.body_length());
            }
        };
        for end in 0..=whole.len() {
            examine(&whole[..end]);
        }
        for at in 0..whole.len() {
            for byte in [0, b'\n', b'\r', b' ', b':', b'[', b']', b'=', 0x80, 0xff] {
                let mut changed = whole.to_vec();
                changed[at] = byte;
                examine(&changed);
            }
        }
    }

    #[test]
    fn a_response_has_its_length_and_no_line_that_was_not_meant() {
        let response = Response::text(Status::Forbidden, "no\n").with("Allow", "GET".into());
        let head = response.head();
        assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Length: 3\r\n"), "{head}");
        assert!(head.ends_with("\r\nAllow: GET\r\n\r\n"), "{head}");
        assert!(head.contains("default-src 'self'; base-uri"), "{head}");
        let lines = head.trim_end().split("\r\n").skip(1);
        assert!(lines.into_iter().all(|l| l.contains(": ")), "{head}");
        assert_eq!(head.matches('\n').count(), head.matches("\r\n").count());
    }
}
