//! The path of the metrics on an HTTP server.

use super::exposition::CONTENT_TYPE;
use crate::http::{self, Body, Request, Response, Reused, Status};

/// Path at which Prometheus collects metrics.
const PATH: &str = "/metrics";

/// The metrics of all services of a directory.
pub(crate) struct Site<F> {
    scrape: F,
    last: Reused,
}

impl<F: Fn() -> String + Send + Sync> Site<F> {
    /// Creates the site with a function that collects the metrics, as text.
    pub(crate) fn new(scrape: F) -> Site<F> {
        Site {
            scrape,
            last: Reused::default(),
        }
    }
}

impl<F: Fn() -> String + Send + Sync> http::Site for Site<F> {
    fn what(&self) -> &'static str {
        "metrics"
    }

    fn lock(&self) -> &'static str {
        ".metrics"
    }

    fn answer(&self, request: &Request) -> Option<Response> {
        if request.path != PATH {
            return None;
        }
        if !request.method.reads() {
            return Some(Response::only("GET, HEAD"));
        }
        // No browser reaches a Unix socket by a name of its choice.
        if !request.is_unix && request.loopback_host().is_none() {
            let why = "the Host header must name a loopback address\n";
            return Some(Response::text(Status::Misdirected, why));
        }
        let text = self.last.get(&self.scrape);
        Some(Response::new(Status::Ok, CONTENT_TYPE, Body::Shared(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Site as _;

    #[test]
    fn metrics_are_at_their_path_for_hosts_of_this_machine() {
        let site = Site::new(|| String::from("evfs_test 1\n"));
        let status = |line: &str, host: &str, is_unix: bool| {
            let text = format!("{line} HTTP/1.1\r\n{host}\r\n\r\n");
            let request = Request::parse(text.as_bytes(), is_unix).unwrap();
            site.answer(&request).map(|response| response.status)
        };
        let local = "Host: 127.0.0.1:9464";
        assert_eq!(status("GET /metrics", local, false), Some(Status::Ok));
        assert_eq!(status("HEAD /metrics?x", local, false), Some(Status::Ok));
        assert_eq!(status("GET /metrics", "Host: evfs", true), Some(Status::Ok));
        assert_eq!(status("GET /metrics/x", local, false), None);
        for (line, host, wrong) in [
            ("POST /metrics", local, Status::MethodNotAllowed),
            ("GET /metrics", "Host: evil.example", Status::Misdirected),
            ("GET /metrics", "A: b", Status::Misdirected),
        ] {
            assert_eq!(status(line, host, false), Some(wrong), "{line} {host}");
        }
    }
}
