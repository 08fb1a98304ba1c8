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

/// Declares a file of `assets/` at a path of the page.
macro_rules! asset {
    ($path:literal, $kind:expr, $file:literal) => {
        Asset {
            path: $path,
            kind: $kind,
            text: include_str!(concat!("assets/", $file)),
        }
    };
}

/// Files that the login page needs, which every browser of the user receives.
pub(super) const PUBLIC: &[Asset] = &[
    asset!("/login.js", SCRIPT, "login.js"),
    asset!("/style.css", CSS, "style.css"),
    asset!("/icon.svg", IMAGE, "icon.svg"),
];

/// Files for browsers that are logged in.
pub(super) const PRIVATE: &[Asset] = &[
    asset!("/", HTML, "index.html"),
    asset!("/main.js", SCRIPT, "main.js"),
    asset!("/views.js", SCRIPT, "views.js"),
    asset!("/details.js", SCRIPT, "details.js"),
    asset!("/chart.js", SCRIPT, "chart.js"),
    asset!("/history.js", SCRIPT, "history.js"),
    asset!("/elements.js", SCRIPT, "elements.js"),
    asset!("/format.js", SCRIPT, "format.js"),
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
