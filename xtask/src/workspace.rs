//! Where the repository and its build output are, and which files it holds.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Folders that hold results, not sources.
const NOT_SOURCES: &[&str] = &[
    ".git",
    "target",
    "runs",
    "dist",
    "docs/book",
    "fuzz/target",
    "fuzz/corpus",
    "fuzz/artifacts",
    "__pycache__",
];

/// `path` without `..` and `.`, as text: the file need not exist.
pub fn normal(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if plain.file_name().is_some() => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// The repository.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: PathBuf,
    build_config: Option<&'static str>,
}

/// A member crate.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub path: PathBuf,
    /// Crates of the workspace that it needs, tests aside.
    pub needs: Vec<String>,
}

impl Workspace {
    /// Finds the repository: Cargo says at run time in which folder xtask's manifest is. What it was at build time
    /// may be another checkout that shares the target folder. Without Cargo, as on a GPU machine that has no Rust, it is the one
    /// that this is started in.
    pub fn find() -> Result<Self> {
        if let Some(manifest) = std::env::var_os("CARGO_MANIFEST_DIR") {
            let root = Path::new(&manifest).parent();
            return root.map(Self::at).context("xtask has no parent folder");
        }
        let here = std::env::current_dir().context("cannot tell the current folder")?;
        Self::around(&here).with_context(|| {
            let here = here.display();
            format!("`{here}` is in no checkout of flow-train; start this in one, or as `cargo xtask`")
        })
    }

    /// The repository that a folder is in.
    fn around(folder: &Path) -> Option<Self> {
        folder
            .ancestors()
            .find(|folder| folder.join("xtask").join("Cargo.toml").is_file())
            .map(Self::at)
    }

    /// The repository in a folder.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            build_config: None,
        }
    }

    /// The same repository, of which Cargo builds everything with a further file of its configuration.
    pub fn built_with(&self, config: &'static str) -> Self {
        Self {
            build_config: Some(config),
            ..self.clone()
        }
    }

    /// The file, seen from the top folder, if there is one.
    pub fn build_config(&self) -> Option<&'static str> {
        self.build_config
    }

    /// The top folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path below the top folder.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// `path` as seen from the top folder.
    pub fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }

    /// The folder of release binaries: beside the running one, which cargo built there.
    pub fn release_folder(&self) -> Result<PathBuf> {
        let here = std::env::current_exe().context("cannot find the running program")?;
        Ok(here
            .parent()
            .context("the running program has no folder")?
            .to_owned())
    }

    /// The release build of `flow-train`.
    pub fn program(&self) -> Result<PathBuf> {
        let name = format!("flow-train{}", std::env::consts::EXE_SUFFIX);
        Ok(self.release_folder()?.join(name))
    }

    /// Every source file, sorted.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        self.collect(&self.root, &mut found)?;
        found.sort();
        Ok(found)
    }

    fn collect(&self, folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
        for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let path = entry?.path();
            let relative = self.relative(&path);
            let name = path.file_name().unwrap_or_default();
            if NOT_SOURCES
                .iter()
                .any(|skip| relative == Path::new(skip) || name == *skip)
            {
                continue;
            }
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                self.collect(&path, found)?
            } else {
                found.push(path)
            }
        }
        Ok(())
    }

    /// The member crates, sorted by name.
    pub fn members(&self) -> Result<Vec<Member>> {
        let mut folders = vec![self.path("xtask")];
        for entry in fs::read_dir(self.path("crates"))? {
            folders.push(entry?.path());
        }
        let mut members = Vec::new();
        for path in folders
            .into_iter()
            .filter(|path| path.join("Cargo.toml").exists())
        {
            let file = path.join("Cargo.toml");
            let text =
                fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let manifest: toml::Table = text
                .parse()
                .with_context(|| format!("{} is no TOML", file.display()))?;
            let name = manifest["package"]["name"]
                .as_str()
                .context("a package needs a name")?
                .to_owned();
            let needs = manifest.get("dependencies").and_then(|table| table.as_table());
            let needs = needs
                .into_iter()
                .flat_map(|table| table.keys().cloned())
                .collect();
            members.push(Member { name, path, needs });
        }
        let names: Vec<String> = members.iter().map(|member| member.name.clone()).collect();
        for member in &mut members {
            member.needs.retain(|need| names.contains(need));
            member.needs.sort();
        }
        members.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_cargo_the_repository_is_the_one_around_the_folder() {
        let place = tempfile::tempdir().unwrap();
        let inner = place.path().join("docs").join("src");
        fs::create_dir_all(&inner).unwrap();
        assert!(Workspace::around(&inner).is_none());
        fs::create_dir(place.path().join("xtask")).unwrap();
        fs::write(place.path().join("xtask").join("Cargo.toml"), "").unwrap();
        assert_eq!(Workspace::around(&inner).unwrap().root(), place.path());
        assert_eq!(Workspace::around(place.path()).unwrap().root(), place.path());
    }
}
