//! The files of the page.

/// A file that is served at a path.
pub(super) struct Asset {
    pub(super) path: &'static str,
    /// Media type.
    pub(super) kind: &'static str,
    pub(super) text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// The page of a browser that is not logged in.
pub(super) const LOGIN: Asset = Asset {
    path: "/login",
    kind: HTML,
    text: include_str!("assets/login.html"),
};

/// Files that the login page needs, which every browser of the user receives.
pub(super) const PUBLIC: &[Asset] = &[
    Asset {
        path: "/login.js",
        kind: SCRIPT,
        text: include_str!("assets/login.js"),
    },
    Asset {
        path: "/style.css",
        kind: CSS,
        text: include_str!("assets/style.css"),
    },
    Asset {
        path: "/icon.svg",
        kind: IMAGE,
        text: include_str!("assets/icon.svg"),
    },
];

/// Files for browsers that are logged in.
pub(super) const PRIVATE: &[Asset] = &[
    Asset {
        path: "/",
        kind: HTML,
        text: include_str!("assets/index.html"),
    },
    Asset {
        path: "/main.js",
        kind: SCRIPT,
        text: include_str!("assets/main.js"),
    },
    Asset {
        path: "/views.js",
        kind: SCRIPT,
        text: include_str!("assets/views.js"),
    },
    Asset {
        path: "/details.js",
        kind: SCRIPT,
        text: include_str!("assets/details.js"),
    },
    Asset {
        path: "/chart.js",
        kind: SCRIPT,
        text: include_str!("assets/chart.js"),
    },
    Asset {
        path: "/history.js",
        kind: SCRIPT,
        text: include_str!("assets/history.js"),
    },
    Asset {
        path: "/elements.js",
        kind: SCRIPT,
        text: include_str!("assets/elements.js"),
    },
    Asset {
        path: "/format.js",
        kind: SCRIPT,
        text: include_str!("assets/format.js"),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_nothing_from_elsewhere_and_no_script_in_its_text() {
        for asset in PUBLIC.iter().chain(PRIVATE).chain([&LOGIN]) {
            let path = asset.path;
            // The name of a namespace is not fetched.
            let text = asset.text.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !text.contains("//www.") && !text.contains("https:"),
                "{path}"
            );
            for unsafe_use in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
            ] {
                assert!(!text.contains(unsafe_use), "{path}: {unsafe_use}");
            }
            if asset.kind == HTML {
                assert_eq!(
                    text.matches("<script").count(),
                    text.matches("<script src=").count()
                );
                assert!(
                    !text.contains(" style=") && !text.contains(" onclick="),
                    "{path}"
                );
            }
        }
    }

    #[test]
    fn every_file_that_a_page_names_is_served() {
        let served = |path: &str| PUBLIC.iter().chain(PRIVATE).any(|asset| asset.path == path);
        for asset in PUBLIC.iter().chain(PRIVATE).chain([&LOGIN]) {
            for quoted in asset.text.split(['"', '\'']) {
                let is_file = [".js", ".css", ".svg"]
                    .iter()
                    .any(|end| quoted.ends_with(end));
                if !is_file || quoted.contains(' ') {
                    continue;
                }
                let path = quoted.trim_start_matches('.');
                assert!(served(path), "{}: {quoted}", asset.path);
            }
        }
    }
}
