//! Finds import cycles between the modules of a crate.
//!
//! The check reads sources, not compiled crates. A path in a `use`, a type, an expression or a
//! macro's arguments is resolved through re-exports to the module that defines the item. Sibling
//! modules must not use each other in a cycle, at any depth. A parent's own items are left out:
//! children extend the types that their parent declares.
//!
//! A directory whose modules are one engine says so: a paragraph of its parent's header begins with
//! [`ENGINE`] and explains the mutual recursion. Its modules are not compared with each other.
//!
//! Deliberately absent: method calls (they need types), and code under `#[cfg(test)]`.

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// First words of the paragraph that declares the modules of a directory to be one engine.
const ENGINE: &str = "One engine:";

/// Longest chain of re-exports that is followed.
const REEXPORTS_MAX: usize = 16;

/// One module of a crate.
struct Module {
    /// Path from the crate's root, empty for the root.
    path: Vec<String>,
    parent: Option<usize>,
    file: PathBuf,
    children: HashMap<String, usize>,
    /// Names that a `use` declares, with the absolute path of each.
    aliases: HashMap<String, Vec<String>>,
    /// Modules whose items a `use` with `*` imports.
    globs: Vec<Vec<String>>,
    /// Paths that the module's code contains, as written, with their lines.
    paths: Vec<(Vec<String>, usize)>,
    is_engine: bool,
}

/// The modules of one crate.
#[derive(Default)]
struct Tree {
    modules: Vec<Module>,
}

/// Returns a description of each import cycle in the crate whose root is the file `root`.
///
/// # Errors
/// A source file cannot be read or parsed.
pub fn cycles(root: &Path) -> Result<Vec<String>, String> {
    let mut tree = Tree::default();
    tree.load(root, None, String::new())?;
    Ok(tree.cycles())
}

impl Tree {
    /// Parses a file and the files of its modules.
    fn load(&mut self, file: &Path, parent: Option<usize>, name: String) -> Result<usize, String> {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let is_engine = text
            .lines()
            .take_while(|line| line.starts_with("//!") || line.starts_with("#!["))
            .any(|line| line.trim_start_matches("//!").trim().starts_with(ENGINE));
        let module = self.add(file, parent, name);
        self.modules[module].is_engine = is_engine;
        self.scan(module, &parsed.items)?;
        Ok(module)
    }

    fn add(&mut self, file: &Path, parent: Option<usize>, name: String) -> usize {
        let mut path = parent.map_or_else(Vec::new, |parent| self.modules[parent].path.clone());
        let index = self.modules.len();
        if let Some(parent) = parent {
            path.push(name.clone());
            self.modules[parent].children.insert(name, index);
        }
        self.modules.push(Module {
            path,
            parent,
            file: file.to_owned(),
            children: HashMap::new(),
            aliases: HashMap::new(),
            globs: Vec::new(),
            paths: Vec::new(),
            is_engine: false,
        });
        index
    }

    /// Records the items of a module and loads its children.
    fn scan(&mut self, module: usize, items: &[syn::Item]) -> Result<(), String> {
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            match item {
                syn::Item::Mod(declared) => self.load_child(module, declared)?,
                syn::Item::Use(declared) => {
                    let line = declared.span().start().line;
                    self.import(module, &declared.tree, &mut Vec::new(), line);
                }
                other => {
                    let mut found = Paths::default();
                    found.visit_item(other);
                    for (tree, line) in found.imports {
                        self.import(module, &tree, &mut Vec::new(), line);
                    }
                    self.modules[module].paths.extend(found.paths);
                }
            }
        }
        Ok(())
    }

    fn load_child(&mut self, module: usize, declared: &syn::ItemMod) -> Result<(), String> {
        let name = declared.ident.to_string();
        let file = self.modules[module].file.clone();
        if let Some((_, items)) = &declared.content {
            let child = self.add(&file, Some(module), name);
            return self.scan(child, items);
        }
        let dir = self.directory(module);
        let candidates = [
            path_attribute(declared).map(|path| file.with_file_name(path)),
            Some(dir.join(format!("{name}.rs"))),
            Some(dir.join(&name).join("mod.rs")),
        ];
        let found = candidates.into_iter().flatten().find(|file| file.is_file());
        let found = found.ok_or_else(|| format!("{}: no file for `{name}`", file.display()))?;
        self.load(&found, Some(module), name).map(|_| ())
    }

    /// Returns the directory of a module's children.
    fn directory(&self, module: usize) -> PathBuf {
        let mut root = module;
        while let Some(parent) = self.modules[root].parent {
            root = parent;
        }
        let top = self.modules[root].file.parent().unwrap_or(Path::new("."));
        self.modules[module]
            .path
            .iter()
            .fold(top.to_owned(), |dir, name| dir.join(name))
    }

    /// Records the names that a `use` declares, and its paths.
    fn import(&mut self, module: usize, tree: &syn::UseTree, to: &mut Vec<String>, line: usize) {
        match tree {
            syn::UseTree::Path(path) => {
                to.push(path.ident.to_string());
                self.import(module, &path.tree, to, line);
                to.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(module, tree, to, line);
                }
            }
            syn::UseTree::Glob(_) => {
                self.modules[module].paths.push((to.clone(), line));
                if let Some(path) = self.absolute(module, to) {
                    self.modules[module].globs.push(path);
                }
            }
            syn::UseTree::Name(name) => {
                let name = name.ident.to_string();
                self.declare(module, to, &name, &name, line);
            }
            syn::UseTree::Rename(rename) => {
                let (name, alias) = (rename.ident.to_string(), rename.rename.to_string());
                self.declare(module, to, &name, &alias, line);
            }
        }
    }

    fn declare(&mut self, module: usize, to: &[String], name: &str, alias: &str, line: usize) {
        let mut path = to.to_vec();
        if name != "self" {
            path.push(name.to_owned());
        }
        let alias = if alias == "self" {
            to.last().cloned().unwrap_or_default()
        } else {
            alias.to_owned()
        };
        self.modules[module].paths.push((path.clone(), line));
        if let Some(path) = self.absolute(module, &path) {
            self.modules[module].aliases.insert(alias, path);
        }
    }

    /// Turns a path that begins with `crate`, `self` or `super` into one from the root. `None`: it
    /// begins with a name that is looked up when all modules are known.
    fn absolute(&self, module: usize, path: &[String]) -> Option<Vec<String>> {
        let mut base = self.modules[module].path.clone();
        let mut rest = path;
        match path.first().map(String::as_str) {
            Some("crate") => base.clear(),
            Some("self" | "super") => {}
            _ => {
                // A relative name: kept as a path below this module, resolved later.
                base.extend(path.iter().cloned());
                return Some(base);
            }
        }
        while let Some(first) = rest.first() {
            match first.as_str() {
                "crate" | "self" => {}
                "super" => {
                    base.pop();
                }
                _ => break,
            }
            rest = &rest[1..];
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    /// Finds the module that defines the item at an absolute path.
    fn resolve(&self, path: &[String], depth: usize) -> Option<usize> {
        if depth > REEXPORTS_MAX {
            return None;
        }
        let mut at = 0;
        for (index, name) in path.iter().enumerate() {
            let module = &self.modules[at];
            if let Some(&child) = module.children.get(name) {
                at = child;
                continue;
            }
            let rest = &path[index + 1..];
            if let Some(target) = module.aliases.get(name) {
                let own = [module.path.as_slice(), std::slice::from_ref(name)].concat();
                if *target == own {
                    // The name of another crate.
                    return None;
                }
                return self.resolve(&[target, rest].concat(), depth + 1);
            }
            let through_glob = module.globs.iter().find_map(|glob| {
                let target = self.resolve(glob, depth + 1)?;
                let is_there = self.modules[target].children.contains_key(name)
                    || self.modules[target].aliases.contains_key(name);
                is_there.then(|| [glob, &path[index..]].concat())
            });
            return match through_glob {
                Some(path) => self.resolve(&path, depth + 1),
                None => Some(at),
            };
        }
        Some(at)
    }

    fn cycles(&self) -> Vec<String> {
        // For each parent: which child uses which, with an example.
        let mut levels: BTreeMap<usize, BTreeMap<(usize, usize), String>> = BTreeMap::new();
        for (from, module) in self.modules.iter().enumerate() {
            for (path, line) in &module.paths {
                let Some(target) = self.target(from, path) else {
                    continue;
                };
                let Some((parent, one, other)) = self.siblings(from, target) else {
                    continue;
                };
                let example = format!("{}:{line} uses {}", module.file.display(), path.join("::"));
                let uses = levels.entry(parent).or_default();
                uses.entry((one, other)).or_insert(example);
            }
        }
        levels
            .iter()
            .filter(|(parent, _)| !self.modules[**parent].is_engine)
            .flat_map(|(_, uses)| self.cycles_among(uses))
            .collect()
    }

    fn target(&self, from: usize, path: &[String]) -> Option<usize> {
        let module = &self.modules[from];
        let first = path.first()?;
        let is_local = module.children.contains_key(first) || module.aliases.contains_key(first);
        if !is_local && !["crate", "self", "super"].contains(&first.as_str()) {
            return None;
        }
        self.resolve(&self.absolute(from, path)?, 0)
    }

    /// Finds the siblings that contain two modules, and their parent. `None`: one of the modules
    /// contains the other.
    fn siblings(&self, one: usize, other: usize) -> Option<(usize, usize, usize)> {
        let (a, b) = (self.ancestors(one), self.ancestors(other));
        let common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        Some((a[common - 1], *a.get(common)?, *b.get(common)?))
    }

    /// Returns a module and what contains it, the root first.
    fn ancestors(&self, module: usize) -> Vec<usize> {
        let mut found = vec![module];
        while let Some(parent) = self.modules[found[found.len() - 1]].parent {
            found.push(parent);
        }
        found.reverse();
        found
    }

    fn cycles_among(&self, uses: &BTreeMap<(usize, usize), String>) -> Vec<String> {
        let graph: DiGraphMap<usize, ()> = uses.keys().map(|&(a, b)| (a, b, ())).collect();
        let mut found = Vec::new();
        for group in tarjan_scc(&graph).iter().filter(|group| group.len() > 1) {
            let mut names: Vec<&str> = group
                .iter()
                .map(|&module| self.modules[module].path.last().map_or("", String::as_str))
                .collect();
            names.sort_unstable();
            let within = uses
                .iter()
                .filter(|((a, b), _)| group.contains(a) && group.contains(b))
                .map(|(_, example)| format!("\n    {example}"));
            found.push(format!(
                "modules use each other in a cycle: {}{}",
                names.join(" "),
                within.collect::<String>()
            ));
        }
        found
    }
}

/// Collects the paths in an item.
#[derive(Default)]
struct Paths {
    paths: Vec<(Vec<String>, usize)>,
    imports: Vec<(syn::UseTree, usize)>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Fn(function) => function.attrs.as_slice(),
            _ => &[],
        };
        if !is_test(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let line = item.span().start().line;
        self.imports.push((item.tree.clone(), line));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.paths.push((names, path.span().start().line));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(super)` uses nothing.
    }
}

impl Paths {
    /// Collects the paths in the arguments of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut line = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end(&mut path, line);
                    }
                    line = name.span().start().line;
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end(&mut path, line);
                    self.tokens(group.stream());
                    colons = 0;
                }
                _ => {
                    self.end(&mut path, line);
                    colons = 0;
                }
            }
        }
        self.end(&mut path, line);
    }

    fn end(&mut self, path: &mut Vec<String>, line: usize) {
        if path.len() > 1 {
            self.paths.push((std::mem::take(path), line));
        }
        path.clear();
    }
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Reports whether an item is compiled for tests only.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string().replace(' ', "");
            condition == "test" || condition.starts_with("all(test,")
        }
        _ => false,
    })
}

/// Finds the file name in a `#[path]` attribute.
fn path_attribute(declared: &syn::ItemMod) -> Option<String> {
    declared
        .attrs
        .iter()
        .find_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(file),
                    ..
                }) => Some(file.value()),
                _ => None,
            },
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a crate with the given files and contents.
    fn check(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        cycles(&dir.path().join("lib.rs")).unwrap()
    }

    #[test]
    fn a_cycle_is_found_through_a_reexport_and_in_a_macro() {
        let root = ("lib.rs", "mod a; mod b; pub use b::B;");
        let a = ("a.rs", "use crate::B; pub struct A(B);");
        let found = check(&[root, a, ("b.rs", "pub struct B; fn f() { crate::a::f() }")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("cycle: a b"), "{found:?}");
        let b = ("b.rs", "pub struct B; fn f() { assert!(super::a::f()) }");
        assert_eq!(check(&[root, a, b]).len(), 1);
        assert!(check(&[root, a, ("b.rs", "pub struct B;")]).is_empty());
    }

    #[test]
    fn children_may_use_their_parent_but_not_each_other_in_a_cycle() {
        let root = ("lib.rs", "mod x;");
        let parent = ("x.rs", "//! X.\nmod a; mod b; pub struct X(a::A, b::B);");
        let a = ("x/a.rs", "use super::X; use super::b::B; pub struct A(B);");
        let b = ("x/b.rs", "use super::X; pub struct B;");
        assert!(check(&[root, parent, a, b]).is_empty());
        let b = ("x/b.rs", "use super::a::A; pub struct B(A);");
        assert_eq!(check(&[root, parent, a, b]).len(), 1);
        let engine = (
            "x.rs",
            "//! X.\n//!\n//! One engine: a and b.\nmod a; mod b;",
        );
        assert!(check(&[root, engine, a, b]).is_empty());
    }

    #[test]
    fn tests_and_other_crates_do_not_count() {
        let root = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "use crate::b::B; use b::Other; pub struct A(B);");
        let b = (
            "b.rs",
            "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }",
        );
        assert!(check(&[root, a, b]).is_empty());
    }
}
