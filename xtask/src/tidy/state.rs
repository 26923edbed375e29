//! The rule about state in memory: each collection or lock that a process keeps is registered, with what becomes of it
//! when there are many processes.
//!
//! It looks at fields and statics by their types; it knows nothing of what they are used for, which people say in the
//! register.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Finding, Source};

/// The register: a table whose rows begin with the place, in backticks.
const REGISTER: &str = "docs/reference/state.md";

/// The crates that make up a server, without their tests.
const CRATES: [&str; 7] = [
    "crates/events/src/",
    "crates/http/src/",
    "crates/scheduler/src/",
    "crates/server/src/",
    "crates/store-api/src/",
    "crates/store-pg/src/",
    "crates/store-sqlite/src/",
];

/// Types that hold many things, or that hold one thing for many.
const KEPT: [&str; 17] = [
    "ArcSwap",
    "BTreeMap",
    "BTreeSet",
    "BinaryHeap",
    "Cache",
    "DashMap",
    "HashMap",
    "HashSet",
    "IndexMap",
    "LazyLock",
    "LruCache",
    "Mutex",
    "OnceCell",
    "OnceLock",
    "RwLock",
    "Slab",
    "VecDeque",
];

/// What can be said of a collection.
const CLASSES: [&str; 4] = ["durable", "shared", "per-process", "request"];

/// Requires that everything kept in memory is in the register with its class and the reason, and nothing else is.
pub(super) fn is_registered(sources: &[Source]) -> Vec<Finding> {
    let Some(register) = sources.iter().find(|source| source.path == REGISTER) else {
        return vec![Finding::new(REGISTER, 1, "the register of state in memory is missing")];
    };
    let (rows, mut findings) = rows(register);
    let mut seen = BTreeSet::new();
    for source in sources.iter().filter(|source| is_server(source)) {
        for (line, name) in kept(source) {
            let place = format!("{} {name}", source.path.trim_start_matches("crates/").replacen("/src/", "/", 1));
            if !rows.contains_key(place.as_str()) {
                let message = format!(
                    "{name} is kept in memory: say in {REGISTER} what becomes of it with many replicas, in a row \
                     | `{place}` | {} | why |",
                    CLASSES.join(" or ")
                );
                findings.push(Finding::new(&source.path, line, message));
            }
            seen.insert(place);
        }
    }
    let gone = rows.iter().filter(|(place, _)| !seen.contains(**place));
    findings.extend(gone.map(|(place, line)| Finding::new(REGISTER, *line, format!("there is no {place} any more"))));
    findings
}

fn is_server(source: &Source) -> bool {
    source.is_rust() && !source.is_test() && CRATES.iter().any(|folder| source.path.starts_with(folder))
}

/// Reads the rows of the register: the line of each place.
fn rows(register: &Source) -> (BTreeMap<&str, usize>, Vec<Finding>) {
    let (mut rows, mut findings) = (BTreeMap::new(), Vec::new());
    for (line, text) in register.numbered().filter(|(_, text)| text.starts_with("| `")) {
        let cells: Vec<&str> = text.trim_matches('|').split('|').map(str::trim).collect();
        let [place, class, reason] = cells[..] else {
            findings.push(Finding::new(REGISTER, line, "a row is | `place` | class | why |"));
            continue;
        };
        if !CLASSES.contains(&class) || reason.split_whitespace().count() < 3 {
            let message = format!("a row has one of the classes {} and a reason", CLASSES.join(", "));
            findings.push(Finding::new(REGISTER, line, message));
        }
        if rows.insert(place.trim_matches('`'), line).is_some() {
            findings.push(Finding::new(REGISTER, line, "it is registered twice"));
        }
    }
    (rows, findings)
}

/// Finds what a file keeps in memory: `Type.field`, `Type.0` of a tuple, `Type.Variant`, `static NAME`, `type Name`.
fn kept(source: &Source) -> Vec<(usize, String)> {
    let lines: Vec<(usize, &str)> = source.product_lines().collect();
    let (mut found, mut owner) = (Vec::new(), None);
    for (index, (line, text)) in lines.iter().enumerate() {
        let item = without_visibility(text.trim());
        if owner.is_some() && text.trim_start().starts_with('}') {
            owner = None;
        } else if let Some(declared) = item.strip_prefix("struct ") {
            let name = first_word(declared);
            match declared.split_once('(') {
                Some((before, fields)) if !before.contains('{') => {
                    if is_kept(fields) {
                        found.push((*line, format!("{name}.0")));
                    }
                }
                _ => owner = declared.ends_with('{').then_some(name),
            }
        } else if let Some(declared) = item.strip_prefix("enum ") {
            owner = declared.ends_with('{').then(|| first_word(declared));
        } else if let Some((kind, declared)) = named_item(item) {
            if is_kept(&whole(&lines[index..], declared)) {
                found.push((*line, format!("{kind} {}", first_word(declared))));
            }
        } else if let (Some(owner), Some((variant, fields))) = (owner, variant(item)) {
            if is_kept(fields) {
                found.push((*line, format!("{owner}.{variant}")));
            }
        } else if let (Some(owner), Some((field, _))) = (owner, item.split_once(": ")) {
            let is_field = field.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
            if is_field && is_kept(&whole(&lines[index..], item)) {
                found.push((*line, format!("{owner}.{field}")));
            }
        }
    }
    found
}

fn named_item(item: &str) -> Option<(&'static str, &str)> {
    let of = |kind: &'static str| item.strip_prefix(kind)?.strip_prefix(' ').map(|declared| (kind, declared));
    of("static").or_else(|| of("type"))
}

fn variant(item: &str) -> Option<(&str, &str)> {
    let name = first_word(item);
    let fields = item.strip_prefix(name)?.strip_prefix('(')?;
    name.starts_with(|letter: char| letter.is_ascii_uppercase()).then_some((name, fields))
}

fn without_visibility(item: &str) -> &str {
    let item = item.strip_prefix("pub ").unwrap_or(item);
    let scoped = item.strip_prefix("pub(").and_then(|rest| rest.split_once(") "));
    scoped.map_or(item, |(_, rest)| rest)
}

fn first_word(text: &str) -> &str {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default()
}

/// Returns the type that is written here, over as many lines as it takes.
fn whole(lines: &[(usize, &str)], first: &str) -> String {
    let mut text = String::new();
    for (_, line) in lines {
        text.push_str(line);
        if line.ends_with(',') || line.ends_with(';') || line.contains(" = ") {
            break;
        }
    }
    // What a static is set to is no type; a field has no such part.
    let declared = text.split(" = ").next().unwrap_or_default();
    let is_alias = first.contains(" = ") && !first.contains(": ");
    let text = if is_alias { text.as_str() } else { declared };
    text.split_once(if is_alias { " = " } else { ": " }).map_or(String::new(), |(_, kept)| kept.to_owned())
}

fn is_kept(text: &str) -> bool {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| KEPT.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\
/// Sessions: Mutex<HashMap> in words do not count.
pub(crate) struct Hub {
    pub(crate) sessions: Mutex<HashMap<Id, Session>>,
    name: String,
    long: Arc<
        RwLock<u8>,
    >,
}
struct Wakes(Mutex<Vec<u8>>);
pub static SEEN: OnceLock<Vec<u8>> = OnceLock::new();
static NAMES: &[&str] = &[\"a\"];
type Rooms = HashMap<Name, Room>;
enum Told {
    After(HashMap<Id, u8>),
}
fn work() { let rooms: HashMap<u8, u8> = HashMap::new(); }
#[cfg(test)]
mod tests {
    struct Fake { calls: Mutex<Vec<u8>> }
}
";
    const FULL: &str = "\
| what | class | why |
|---|---|---|
| `events/hub.rs Hub.sessions` | per-process | sockets end here |
| `events/hub.rs Hub.long` | durable | it is read again |
| `events/hub.rs Wakes.0` | per-process | wakes loops of this process |
| `events/hub.rs static SEEN` | per-process | made once a process |
| `events/hub.rs type Rooms` | shared | rows of the database |
| `events/hub.rs Told.After` | request | it ends soon |
";

    fn messages(code: &str, register: &str) -> Vec<String> {
        let sources = [Source::new("crates/events/src/hub.rs", code), Source::new(REGISTER, register)];
        is_registered(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_full_register_is_fine() {
        assert_eq!(messages(CODE, FULL), Vec::<String>::new());
    }

    #[test]
    fn each_collection_that_is_not_registered_is_found() {
        let rows: Vec<&str> = FULL.lines().filter(|row| row.starts_with("| `")).collect();
        for row in rows {
            let found = messages(CODE, &FULL.replace(row, ""));
            let place = row.split('`').nth(1).unwrap();
            assert!(found.len() == 1 && found[0].contains(&format!("| `{place}` |")), "{found:?}");
        }
        let broken = CODE.replace("    name: String,", "    name: String,\n    cache: BTreeMap<Id, Answer>,");
        let found = messages(&broken, FULL);
        assert!(found.len() == 1 && found[0].starts_with("crates/events/src/hub.rs:5: Hub.cache"), "{found:?}");
    }

    #[test]
    fn what_is_gone_doubled_or_without_a_reason_is_found() {
        assert_eq!(messages("", FULL).len(), 6, "nothing of it is there");
        assert_eq!(
            messages(CODE, &format!("{FULL}| `events/hub.rs Hub.long` | durable | it is read again |\n")).len(),
            1
        );
        for row in
            ["| `events/hub.rs Hub.long` | durable |  |", "| `events/hub.rs Hub.long` | somehow | it is read again |"]
        {
            let register = FULL.replace("| `events/hub.rs Hub.long` | durable | it is read again |", row);
            assert_eq!(messages(CODE, &register).len(), 1, "{row}");
        }
        assert_eq!(is_registered(&[Source::new("crates/events/src/hub.rs", CODE)]).len(), 1, "there is no register");
    }
}
