//! The settings with all their problems, for a command that examines the configuration.

use super::{CONFIG, LISTEN, Origin, Settings, TABLE, flatten, without_services};
use crate::paths::Paths;
use crate::text::did_you_mean;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A problem of the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The configuration file cannot be read or parsed; the reason.
    Unreadable(String),
    /// Message about a key of the file that is no setting.
    UnknownKey(String),
    /// Message about a value that is not permitted, with its origin.
    Invalid(String),
    /// A value of the file has no effect, because a variable sets another one.
    Overridden {
        /// Name of the setting.
        key: &'static str,
        /// The variable.
        env: &'static str,
        /// Value in the variable.
        value: String,
    },
}

/// The settings with their problems.
#[derive(Debug, Clone)]
pub struct Examined {
    /// Settings in force, with the default for each unusable value.
    pub settings: Settings,
    /// The configuration file.
    pub path: PathBuf,
    /// Whether that file exists.
    pub exists: bool,
    /// Problems found.
    pub problems: Vec<Problem>,
}

impl Settings {
    /// Loads the same settings as [`Settings::load`], with the default for each value that cannot
    /// be used, and lists the problems.
    pub fn examine() -> Examined {
        let paths = Paths::of_this_user();
        let is_default = std::env::var_os(CONFIG).is_none();
        let path = Settings::file();
        let file = crate::state_file::read_text(&path);
        let absent = matches!(&file, Err(e) if e.kind() == std::io::ErrorKind::NotFound);
        let mut problems = Vec::new();
        if let Err(error) = &file
            && !(absent && is_default)
        {
            problems.push(Problem::Unreadable(crate::without_number(
                &error.to_string(),
            )));
        }
        let env = |name: &str| std::env::var(name).ok();
        let text = file.ok();
        let given = text.as_deref().map(|text| (path.as_path(), text));
        let settings = Settings::examine_parts(&paths, given, &env, &mut problems);
        Examined {
            settings,
            exists: !absent,
            path,
            problems,
        }
    }

    fn examine_parts(
        paths: &Paths,
        file: Option<(&Path, &str)>,
        env: &dyn Fn(&str) -> Option<String>,
        problems: &mut Vec<Problem>,
    ) -> Settings {
        let mut leaves = Vec::new();
        if let Some((_, text)) = file {
            match text.parse::<toml::Table>() {
                Ok(table) => leaves = flatten("", &without_services(table)),
                Err(e) => problems.push(Problem::Unreadable(e.to_string())),
            }
        }
        for (key, _) in &leaves {
            if !TABLE.iter().any(|row| row.key == key) {
                let hint = did_you_mean(key, TABLE.iter().map(|row| row.key));
                problems.push(Problem::UnknownKey(format!("unknown key `{key}`{hint}")));
            }
        }
        let mut values = BTreeMap::new();
        for row in TABLE {
            let default = ((row.default)(paths), Origin::Default);
            let in_file = leaves.iter().find(|(key, _)| row.key == key);
            let in_file = in_file.map(|(_, value)| value.clone());
            let in_file = in_file.zip(file).map(|(value, (path, _))| {
                let origin = Origin::File(path.to_owned());
                (value, origin)
            });
            let in_env = env(row.env).map(|value| (value, Origin::Environment(row.env)));
            if let (Some((below, _)), Some((above, _))) = (&in_file, &in_env)
                && below != above
            {
                problems.push(Problem::Overridden {
                    key: row.key,
                    env: row.env,
                    value: above.clone(),
                });
            }
            let given = in_env.or(in_file);
            let wrong = given.as_ref().and_then(|(value, origin)| {
                let want = (row.check)(value).err()?;
                let key = row.key;
                Some(format!("{origin}: {key} is `{value}`, but must be {want}"))
            });
            let usable = given.filter(|_| wrong.is_none()).unwrap_or(default);
            problems.extend(wrong.map(Problem::Invalid));
            values.insert(row.key, usable);
        }
        let mut settings = Settings {
            values,
            is_dry_run: false,
            ownership: None,
            succession: None,
        };
        for key in LISTEN {
            if let Err(want) = settings.listen(key) {
                let (value, origin) = &settings.values[key];
                problems.push(Problem::Invalid(format!(
                    "{origin}: {key} is `{value}`, but must be {want}"
                )));
                let row = TABLE.iter().find(|row| row.key == key);
                let default = row.map_or_else(String::new, |row| (row.default)(paths));
                settings.values.insert(key, (default, Origin::Default));
            }
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_listed_and_the_usable_values_stay() {
        let examine = |file: &str| {
            let env = |name: &str| (name == "EVFS_THREADS").then(|| "5".to_owned());
            let mut problems = Vec::new();
            let file = Some((Path::new("/etc/evfs/evfs.toml"), file));
            let paths = Paths::of_this_user();
            let settings = Settings::examine_parts(&paths, file, &env, &mut problems);
            (settings, problems)
        };
        let text = "threads = 3\n[kdf]\ntime-sm = 1\ntime-ms = 0\nmemory-kib = 64\n";
        let (settings, problems) = examine(text);
        assert_eq!(settings.threads(), 5);
        assert_eq!(settings.kdf_time().as_millis(), 2000);
        assert_eq!(settings.kdf_memory_kib(), 64);
        assert_eq!(problems.len(), 3, "{problems:?}");
        let any = |is: fn(&Problem) -> bool| problems.iter().any(is);
        assert!(any(
            |p| matches!(p, Problem::UnknownKey(why) if why.contains("`kdf.time-ms`"))
        ));
        assert!(any(
            |p| matches!(p, Problem::Invalid(why) if why.contains("kdf.time-ms is `0`"))
        ));
        assert!(any(|p| matches!(
            p,
            Problem::Overridden { key: "threads", .. }
        )));
        assert!(matches!(
            examine("= ").1.as_slice(),
            [Problem::Unreadable(_)]
        ));
        assert!(examine("threads = 5\n").1.is_empty());
        let (settings, problems) = examine("[web]\nlisten = \"/elsewhere/w.sock\"\n");
        let is_listen =
            |p: &Problem| matches!(p, Problem::Invalid(why) if why.contains("web.listen"));
        assert!(problems.iter().any(is_listen), "{problems:?}");
        assert_eq!(settings.web_listen(), None);
    }
}
