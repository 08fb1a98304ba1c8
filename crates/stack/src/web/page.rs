//! The paths of the page on an HTTP server.

use super::access::{Access, LOCK};
use super::api;
use super::assets::{Asset, LOGIN, PRIVATE, PUBLIC};
use crate::Result;
use crate::control::{self, valid_name};
use crate::http::{Body, Method, Request, Response, Reused, Site, Status};
use crate::listen::Listen;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Path of the data about all services.
const OVERVIEW: &str = "/api/overview";
/// Path of the data about a service, without its name.
const SERVICE: &str = "/api/service/";
/// Answers kept for reuse, at most.
const ANSWERS_MAX: usize = 64;

/// The web page of all services of a directory.
pub(crate) struct Page {
    run_dir: PathBuf,
    access: Access,
    /// Answers by their path.
    answers: Mutex<BTreeMap<String, Arc<Reused>>>,
}

/// The object of a request.
enum Asked<'a> {
    Login,
    Public(&'static Asset),
    Private(&'static Asset),
    Overview,
    Service(&'a str),
}

impl Asked<'_> {
    /// Finds the object at a path; returns `None` if this site has none there.
    fn of(path: &str) -> Option<Asked<'_>> {
        let in_list = |list: &'static [Asset]| list.iter().find(|asset| asset.path == path);
        match path {
            OVERVIEW => return Some(Asked::Overview),
            path if path == LOGIN.path => return Some(Asked::Login),
            _ => {}
        }
        if let Some(name) = path.strip_prefix(SERVICE) {
            return valid_name(name).then_some(Asked::Service(name));
        }
        let public = in_list(PUBLIC).map(Asked::Public);
        public.or_else(|| in_list(PRIVATE).map(Asked::Private))
    }
}

impl Page {
    /// Creates the page of the services in `run_dir`.
    pub(crate) fn new(run_dir: &Path) -> Page {
        Page {
            run_dir: run_dir.to_owned(),
            access: Access::new(run_dir),
            answers: Mutex::default(),
        }
    }

    /// Exchanges a token for a cookie. Cookies of a host are sent to all of its ports, so their
    /// names tell the pages of several ports apart.
    fn log_in(&self, request: &Request, cookie: &str) -> Response {
        if request.is_of_another_page() {
            return Response::text(Status::Forbidden, "another page sent the token\n");
        }
        match self.access.log_in(&request.body) {
            Ok(Some(session)) => {
                let set = format!("{cookie}={session}; Path=/; HttpOnly; SameSite=Strict");
                Response::text(Status::Ok, "logged in\n").with("Set-Cookie", set)
            }
            Ok(None) => Response::text(
                Status::Forbidden,
                "the link is not valid any more; `evfs web` prints another one\n",
            ),
            Err(_) => Response::text(
                Status::Failed,
                "the next token cannot be written; free space in the directory of the sockets\n",
            ),
        }
    }

    /// Answers with data that may have been collected a short time before.
    fn data(&self, path: &str, collect: impl FnOnce() -> serde_json::Value) -> Response {
        let text = self.reused(path).get(|| collect().to_string());
        Response::new(Status::Ok, "application/json", Body::Shared(text))
    }

    fn reused(&self, path: &str) -> Arc<Reused> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= ANSWERS_MAX && !answers.contains_key(path) {
            answers.clear();
        }
        Arc::clone(answers.entry(path.to_owned()).or_default())
    }

    fn service(&self, path: &str, name: &str) -> Response {
        if !control::names(&self.run_dir).iter().any(|n| n == name) {
            return Response::text(Status::NotFound, "no service has this name\n");
        }
        self.data(path, || api::service(&self.run_dir, name))
    }
}

fn file(status: Status, asset: &Asset) -> Response {
    Response::new(status, asset.kind, Body::Static(asset.text))
}

impl Site for Page {
    fn what(&self) -> &'static str {
        "the web page"
    }

    fn lock(&self) -> &'static str {
        LOCK
    }

    fn open(&self, at: &Listen) -> Result<()> {
        self.access.open(at)
    }

    fn close(&self) {
        self.access.close();
    }

    fn answer(&self, request: &Request) -> Option<Response> {
        let asked = Asked::of(&request.path)?;
        let Some((_, port)) = request.loopback_host() else {
            let why = "the Host header must name a loopback address\n";
            return Some(Response::text(Status::Misdirected, why));
        };
        let cookie = format!("evfs-{port}");
        if matches!(asked, Asked::Login) && request.method == Method::Post {
            return Some(self.log_in(request, &cookie));
        }
        if !request.method.reads() {
            let is_login = matches!(asked, Asked::Login);
            let allowed = if is_login {
                "GET, HEAD, POST"
            } else {
                "GET, HEAD"
            };
            return Some(Response::only(allowed));
        }
        let given = request.cookie(&cookie);
        let is_admitted = given.is_some_and(|cookie| self.access.admits(cookie));
        Some(match asked {
            Asked::Login => file(Status::Ok, &LOGIN),
            Asked::Public(asset) => file(Status::Ok, asset),
            // The login page says how to get a link.
            Asked::Private(asset) if !is_admitted && asset.path == "/" => {
                file(Status::Forbidden, &LOGIN)
            }
            _ if !is_admitted => {
                Response::text(Status::Forbidden, "log in with a link of `evfs web`\n")
            }
            Asked::Private(asset) => file(Status::Ok, asset),
            Asked::Overview => self.data(OVERVIEW, || api::overview(&self.run_dir)),
            Asked::Service(name) => self.service(&request.path, name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An open page, with its token and the directory of its file.
    fn opened() -> (tempfile::TempDir, Page) {
        let dir = tempfile::tempdir().unwrap();
        let page = Page::new(dir.path());
        let at = Listen::Tcp("127.0.0.1:9465".parse().unwrap());
        page.open(&at).unwrap();
        (dir, page)
    }

    fn send(page: &Page, line: &str, headers: &str, body: &[u8]) -> Option<Response> {
        let text = format!("{line} HTTP/1.1\r\n{headers}\r\n");
        let mut request = Request::parse(text.as_bytes(), false).unwrap();
        request.body = body.to_vec();
        page.answer(&request)
    }

    const HOST: &str = "Host: 127.0.0.1:9465\r\n";

    fn token(dir: &Path) -> String {
        let text = std::fs::read_to_string(dir.join(".web.token")).unwrap();
        let invitation: serde_json::Value = serde_json::from_str(&text).unwrap();
        invitation["token"].as_str().unwrap().to_owned()
    }

    #[test]
    fn without_a_cookie_only_the_login_page_is_served() {
        let (_dir, page) = opened();
        let status = |line: &str| send(&page, line, HOST, b"").map(|r| r.status);
        for line in [
            "GET /login",
            "HEAD /login",
            "GET /login.js",
            "GET /style.css",
        ] {
            assert_eq!(status(line), Some(Status::Ok), "{line}");
        }
        for asset in PRIVATE {
            let line = format!("GET {}", asset.path);
            assert_eq!(status(&line), Some(Status::Forbidden), "{line}");
        }
        for line in ["GET /api/overview", "GET /api/service/disk"] {
            assert_eq!(status(line), Some(Status::Forbidden), "{line}");
        }
        for line in [
            "POST /",
            "PUT /login",
            "DELETE /api/overview",
            "POST /style.css",
        ] {
            assert_eq!(status(line), Some(Status::MethodNotAllowed), "{line}");
        }
        for line in ["GET /metrics", "GET /api", "GET /api/service/..", "POST /x"] {
            assert_eq!(status(line), None, "{line}");
        }
    }

    #[test]
    fn a_token_buys_the_cookie_that_opens_the_page() {
        let (dir, page) = opened();
        let token = token(dir.path());
        let post = |headers: &str, body: &str| {
            send(&page, "POST /login", headers, body.as_bytes()).unwrap()
        };
        let foreign = format!("{HOST}Origin: http://127.0.0.1:1\r\n");
        assert_eq!(post(&foreign, &token).status, Status::Forbidden);
        assert_eq!(post(HOST, "wrong").status, Status::Forbidden);
        let host = "Host: evil.example\r\n";
        assert_eq!(post(host, &token).status, Status::Misdirected);
        let own = format!("{HOST}Origin: http://127.0.0.1:9465\r\n");
        let welcome = post(&own, &token).head();
        assert_eq!(post(&own, &token).status, Status::Forbidden, "it was used");
        let set = welcome.lines().find_map(|l| l.strip_prefix("Set-Cookie: "));
        let set = set.unwrap();
        assert!(
            set.ends_with("; Path=/; HttpOnly; SameSite=Strict"),
            "{set}"
        );
        assert!(!welcome.contains(&token), "{welcome}");
        let cookie = set.split(';').next().unwrap();
        let headers = format!("{HOST}Cookie: a=b; {cookie}\r\n");
        let status = |line: &str, headers: &str| send(&page, line, headers, b"").unwrap().status;
        for line in ["GET /", "GET /main.js", "HEAD /api/overview"] {
            assert_eq!(status(line, &headers), Status::Ok, "{line}");
        }
        assert_eq!(status("GET /api/service/no", &headers), Status::NotFound);
        assert_eq!(status("POST /", &headers), Status::MethodNotAllowed);
        // The page of another port has another cookie.
        let other = headers.replace("Host: 127.0.0.1:9465", "Host: 127.0.0.1:9466");
        assert_eq!(status("GET /", &other), Status::Forbidden);
        page.close();
        assert_eq!(status("GET /", &headers), Status::Forbidden);
    }
}
