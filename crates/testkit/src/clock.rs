//! Wrong host clocks: the variables that start a process with one, by `libfaketime`.

use std::path::{Path, PathBuf};

use switchboard_testkit_postgres::install_package;

use crate::must::Must as _;

/// Where distributions put the library, below their folders of libraries.
const FOLDERS: [&str; 3] = ["/usr/lib", "/usr/lib64", "/usr/local/lib"];
/// The library for processes of several threads, in a folder of its own.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// Returns the variables of a process whose clock is wrong by so many minutes and whose monotonic clock is right.
pub(crate) fn offset(minutes: i32) -> [(&'static str, String); 3] {
    [
        ("LD_PRELOAD", library().display().to_string()),
        ("FAKETIME", format!("{minutes:+}m")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

fn library() -> PathBuf {
    if let Some(found) = find() {
        return found;
    }
    install_package("faketime").must("a wrong clock needs libfaketime: install the package faketime");
    find().unwrap_or_else(|| panic!("the package faketime has no {LIBRARY} below {FOLDERS:?}"))
}

/// Looks in the folders, and in those of one architecture below them.
fn find() -> Option<PathBuf> {
    FOLDERS.iter().map(Path::new).find_map(|folder| {
        let below = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        std::iter::once(folder.to_owned()).chain(below).map(|folder| folder.join(LIBRARY)).find(|path| path.is_file())
    })
}
