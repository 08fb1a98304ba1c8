//! The web page in a real browser: its content, its look, the keyboard, and accessibility.

mod needs_peer {
    use serde_json::{Value, json};
    use tests::browser::Browser;
    use tests::cell::create_cell;
    use tests::targets::free_port;
    use tests::web::{axe, invitation, with_web};
    use tests::{Sandbox, wait_until};

    /// Label of a file system, which must stay a text.
    const LABEL: &str = "<img src=x onerror=document.title='hit'>";

    /// All pages: a name for messages, and the end of the address.
    const PAGES: [(&str, &str); 7] = [
        ("overview", "#/overview"),
        ("volume", "#/service/outer"),
        ("volume on a LUN", "#/service/inner"),
        ("cell as a service", "#/service/cell"),
        ("LUN", "#/lun/"),
        ("cell", "#/cell/cell"),
        ("cache", "#/cache"),
    ];

    /// Services of every kind, and a browser that is logged in.
    struct Served {
        browser: Browser,
        /// Name of the LUN.
        lun: String,
        s: Sandbox,
    }

    impl Served {
        fn start() -> Served {
            let s = Sandbox::new();
            let port = free_port();
            let listen = format!("127.0.0.1:{port}");
            s.volume("outer.img", "96M", &[]);
            let outer = with_web(&s, &listen, &["attach", "outer.img"]);
            let uri = outer["exports"][0]["at"].as_str().unwrap();
            // Without data, the outer volume decrypts to noise, which is not empty.
            let create = ["volume", "create", uri, "--owner", "owner", "--force"];
            s.run(&[&create[..], &["--label", LABEL]].concat()).ok();
            with_web(&s, &listen, &["attach", uri, "--name", "inner"]);
            create_cell(&s);
            with_web(&s, &listen, &["serve", "cell.img"]);
            let inner = s.json(&["status", "inner"]);
            let lun = inner["volumes"][0]["lun"].as_str().unwrap().to_owned();
            let mut browser = Browser::start(&s);
            browser.look(1280, "light");
            browser.open(invitation(&s)["url"].as_str().unwrap());
            browser.wait("location.pathname === '/' && location.hash === ''");
            browser.wait("document.querySelectorAll('main tbody tr').length >= 3");
            assert_eq!(browser.errors(), Vec::<String>::new());
            Served { browser, lun, s }
        }

        /// Goes to a page, and waits until it has data.
        fn go(&mut self, hash: &str) {
            let hash = match hash {
                "#/lun/" => format!("#/lun/{}", self.lun),
                other => other.to_owned(),
            };
            let browser = &mut self.browser;
            // A page keeps its content until the next one is shown.
            browser.eval("document.querySelector('main h1').dataset.old = 'yes'");
            let is_there = browser.eval("location.hash") == hash.as_str();
            browser.eval(&format!("location.hash = '{hash}'"));
            if !is_there {
                browser.wait("document.querySelector('main h1').dataset.old === undefined");
            }
            browser.wait("!document.querySelector('main > div').hidden");
        }

        fn text(&mut self) -> String {
            let text = self
                .browser
                .eval("document.querySelector('main').innerText");
            text.as_str().unwrap().to_owned()
        }

        fn write(&self) {
            let at = self.s.path("run/inner.nbd");
            let mut client = nbd_client::Client::connect(&at, "inner").unwrap();
            client.write_at(0, &[5; 65_536]).unwrap();
            client.flush().unwrap();
        }

        fn end(self) {
            let Served { browser, s, .. } = self;
            drop(browser);
            for name in ["cell", "inner", "outer"] {
                s.detach(name);
            }
        }
    }

    #[test]
    fn every_page_shows_its_object_and_charts_get_points() {
        let mut served = Served::start();
        let overview = served.text();
        for name in ["outer", "inner", "cell", "test.local", "outer.img"] {
            assert!(overview.contains(name), "{name}: {overview}");
        }
        assert!(overview.contains("3 services: 3 ok."), "{overview}");
        served.write();
        served
            .browser
            .wait("document.querySelector('.plot').dataset.points >= 4");
        let paths = "[...document.querySelectorAll('.plot path')].map(p => p.getAttribute('d'))";
        let paths = served.browser.eval(paths);
        let paths = paths.as_array().unwrap();
        assert!(paths.len() >= 5, "{paths:?}");
        assert!(paths[0].as_str().unwrap().contains('L'), "{paths:?}");
        let summary = "document.querySelector('.plot').getAttribute('aria-label')";
        let summary = served.browser.eval(summary).to_string();
        assert!(summary.contains("Written: now "), "{summary}");
        served
            .browser
            .eval("document.querySelector('details').open = true");
        served
            .browser
            .wait("document.querySelectorAll('details[open] tbody tr').length >= 3");
        for (hash, expected) in [
            (
                "#/service/outer",
                vec!["outer.img", "Kind", "nbd", "role owner"],
            ),
            (
                "#/service/inner",
                vec![LABEL, "Requests since the start", "write"],
            ),
            ("#/service/cell", vec!["Filesets", "root.cell", "available"]),
            (
                "#/lun/",
                vec!["online", "Paths", "active", "Bytes per second on"],
            ),
            ("#/cell/cell", vec!["root.afs", "Clients", "Addresses"]),
            ("#/cache", vec!["filecache_max", "Hit ratio", "Process "]),
            (
                "#/service/nothing",
                vec!["not running", "No service has this name"],
            ),
        ] {
            served.go(hash);
            let text = served.text();
            for part in expected {
                assert!(text.contains(part), "{hash}, {part}: {text}");
            }
            let title = served.browser.eval("document.title");
            assert!(title.as_str().unwrap().ends_with(" - EVFS"), "{title}");
        }
        // The name from outside has become text, not an image.
        served.go("#/service/inner");
        let images = "document.querySelectorAll('main img').length";
        assert_eq!(served.browser.eval(images), 0);
        let errors = served.browser.errors();
        // The service that does not exist is the only one.
        assert!(errors.iter().all(|e| e.contains("404")), "{errors:?}");
        served.end();
    }

    #[test]
    fn a_failed_path_is_announced_and_its_reason_shown() {
        let mut served = Served::start();
        let outer = served.s.json(&["status", "outer"])["volumes"][0]["pid"].clone();
        served.go("#/lun/");
        // A process that serves no page any more: another one takes its place, with a new token.
        tests::signal(outer.as_i64().unwrap() as i32, libc::SIGKILL);
        served
            .browser
            .wait("document.getElementById('announcement').textContent !== ''");
        wait_until("another process serves the page", || {
            invitation(&served.s)["pid"] != outer
        });
        let url = invitation(&served.s)["url"].as_str().unwrap().to_owned();
        served.browser.open(&url);
        served.browser.wait("location.pathname === '/'");
        served
            .browser
            .wait("document.querySelector('main .badge.failing') !== null");
        served.go("#/service/inner");
        served
            .browser
            .wait("document.querySelector('main').innerText.includes('no path of the LUN works')");
        served.go("#/lun/");
        let text = served.text();
        assert!(text.contains("offline") && text.contains("Log"), "{text}");
        let Served { browser, s, .. } = served;
        drop(browser);
        let _ = s.run(&["detach", "inner", "--force"]);
        s.detach("cell");
    }

    #[test]
    fn the_page_is_light_or_dark_and_fits_a_narrow_screen() {
        let mut served = Served::start();
        served
            .browser
            .wait("document.querySelector('.plot').dataset.points >= 2");
        for (width, scheme) in [
            (1280, "light"),
            (1280, "dark"),
            (420, "light"),
            (420, "dark"),
        ] {
            served.browser.look(width, scheme);
            for (what, hash) in PAGES {
                served.go(hash);
                let wide = served.browser.eval(
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth",
                );
                assert_eq!(wide, 0, "{what} at {width} is wider than the screen");
                let name = format!("page-{}-{width}-{scheme}", what.replace(' ', "-"));
                served.browser.picture(&name);
            }
            served.go("#/overview");
            served
                .browser
                .wait("document.querySelector('.plot path') !== null");
            served
                .browser
                .eval("document.querySelector('figure').scrollIntoView()");
            let curve = "getComputedStyle(document.querySelector('.plot path')).stroke";
            let curve = served.browser.eval(curve);
            let shot = served.browser.shot(curve.as_str().unwrap());
            let is_right = match scheme {
                "dark" => shot.brightness < 70.0,
                _ => shot.brightness > 190.0,
            };
            assert!(is_right, "{scheme}: {shot:?}");
            assert_eq!(shot.width, u64::from(width), "{shot:?}");
            // Text, lines, and the curve in its color.
            assert!(shot.colors > 20 && shot.wanted > 10, "{scheme}: {shot:?}");
            // Text in charts keeps its size on a narrow screen.
            let size = "document.querySelector('.plot text').getBoundingClientRect().height";
            let size = served.browser.eval(size);
            assert!(size.as_f64().unwrap() > 10.0, "{size}");
        }
        assert_eq!(served.browser.errors(), Vec::<String>::new());
        served.end();
    }

    #[test]
    fn the_keyboard_reaches_everything_and_updates_keep_the_focus() {
        let mut served = Served::start();
        let browser = &mut served.browser;
        browser.press("Tab");
        assert_eq!(browser.eval("document.activeElement.id"), "skip");
        browser.press("Enter");
        assert_eq!(browser.eval("document.activeElement.id"), "main");
        browser.press("Tab");
        let active = browser.eval("document.activeElement.className");
        assert_eq!(active, "scroll", "a table can be scrolled");
        browser.press("Tab");
        let active = "document.activeElement.textContent";
        let name = browser.eval(active);
        assert!(
            ["cell", "inner", "outer"].iter().any(|n| name == *n),
            "{name}"
        );
        let outline = "getComputedStyle(document.activeElement).outlineStyle";
        assert_eq!(browser.eval(outline), "solid");
        let updated = browser.eval("document.getElementById('updated').textContent");
        browser.wait(&format!(
            "document.getElementById('updated').textContent !== {updated}"
        ));
        assert_eq!(browser.eval(active), name, "after an update");
        browser.press("Enter");
        browser.wait("document.activeElement.tagName === 'H1'");
        assert_eq!(browser.eval(active), name);
        browser.eval("document.getElementById('pause').click()");
        let pressed = "document.getElementById('pause').getAttribute('aria-pressed')";
        assert_eq!(browser.eval(pressed), "true");
        let still = "new Promise(done => {
            const seen = document.getElementById('updated').textContent;
            setTimeout(() => done(document.getElementById('updated').textContent === seen), 5000);
        })";
        // The update in progress ends first.
        browser.wait(still);
        served.end();
    }

    /// Runs the checker in the page, and returns its serious and critical findings.
    fn findings(browser: &mut Browser, checker: &str) -> Vec<String> {
        if browser.eval("typeof axe") != "object" {
            browser.eval(&format!("{checker}; undefined"));
        }
        let found = browser.eval(
            "axe.run(document, { resultTypes: ['violations'] }).then(all => all.violations
                .filter(v => ['serious', 'critical'].includes(v.impact))
                .map(v => `${v.id}: ${v.help}: ${v.nodes.map(n => n.html).join(' | ')}`))",
        );
        let found = found.as_array().expect("a list of findings");
        found.iter().map(Value::to_string).collect()
    }

    #[test]
    fn a_checker_finds_no_serious_problem_of_accessibility() {
        let checker = std::fs::read_to_string(axe()).unwrap();
        let mut served = Served::start();
        // The checker makes functions of texts, which the page forbids its scripts.
        let bypass = json!({ "enabled": true });
        served.browser.call("Page.setBypassCSP", bypass);
        served.browser.eval("document.body.dataset.old = 'yes'");
        served.browser.call("Page.reload", json!({}));
        served.browser.wait(
            "document.body.dataset.old === undefined
                && document.querySelectorAll('main tbody tr').length >= 3",
        );
        for scheme in ["light", "dark"] {
            served.browser.look(1280, scheme);
            for (what, hash) in PAGES {
                served.go(hash);
                let open = "document.querySelectorAll('details').forEach(d => d.open = true)";
                served.browser.eval(open);
                let found = findings(&mut served.browser, &checker);
                assert!(found.is_empty(), "{what}, {scheme}: {found:#?}");
            }
        }
        // The checker is able to find something.
        served
            .browser
            .eval("document.querySelector('main').append(document.createElement('button'))");
        assert!(!findings(&mut served.browser, &checker).is_empty());
        let login = served.browser.eval("location.origin + '/login'");
        served.browser.open(login.as_str().unwrap());
        let found = findings(&mut served.browser, &checker);
        assert!(found.is_empty(), "login: {found:#?}");
        served.end();
    }

    #[test]
    fn a_browser_without_a_valid_link_is_told_what_to_do() {
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        let port = free_port();
        with_web(&s, &format!("127.0.0.1:{port}"), &["attach", "a.img"]);
        let first = invitation(&s)["url"].as_str().unwrap().to_owned();
        let mut browser = Browser::start(&s);
        browser.open(&format!("http://127.0.0.1:{port}/"));
        browser.wait("document.body.innerText.includes('Run evfs web')");
        let wrong = format!("http://127.0.0.1:{port}/login#{}", "0".repeat(64));
        browser.open(&wrong);
        browser.wait("document.body.innerText.includes('not valid any more')");
        // The token does not stay in the address.
        assert_eq!(browser.eval("location.hash"), "");
        browser.open(&first);
        browser.wait("location.pathname === '/'");
        browser.wait("document.querySelector('main tbody tr') !== null");
        // A script cannot read the cookie.
        assert_eq!(browser.eval("document.cookie"), "");
        drop(browser);
        s.detach("a");
    }
}
