//! The secret keys of a deployment: configured, or, in single mode, made once and kept in a file beside the data.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use switchboard_http::{KeyAlgorithm, KeyRing, Sealer};
use switchboard_model::secret_text::SecretText;

use crate::config::{Config, Replicas};
use crate::database::Database;
use crate::key_check::KeyCheck;

/// What the key of a deployment is called that made its own and signs by it.
const OWN_KEY: &str = "own";

/// The keys that sign access tokens, and those that encrypt secrets at rest.
pub(crate) struct Keys {
    pub(crate) signing: KeyRing,
    pub(crate) sealing: Sealer,
}

/// The key file, as TOML.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    signing_keys: Vec<String>,
    secrets_keys: Vec<String>,
}

impl Keys {
    /// Reads the configured keys. What is not configured comes from the key file, which is made when missing;
    /// replicas of a fleet must be given theirs.
    pub(crate) fn load(config: &Config, database: &Database) -> anyhow::Result<Self> {
        let (mut signing, mut sealing) = (config.auth.signing_keys.clone(), config.secrets.keys.clone());
        if signing.is_empty() || sealing.is_empty() {
            if let Some(missing) = Self::missing(config) {
                bail!(missing);
            }
            let file = KeyFile::open(&path(config, database))?;
            let given = |keys: Vec<String>| keys.into_iter().map(SecretText::from_presented).collect();
            signing = if signing.is_empty() { given(file.signing_keys) } else { signing };
            sealing = if sealing.is_empty() { given(file.secrets_keys) } else { sealing };
        }
        Self::read(&signing, &sealing)
    }

    /// Reads the configured keys; `None` where some are not configured.
    pub(crate) fn configured(config: &Config) -> anyhow::Result<Option<Self>> {
        let (signing, sealing) = (&config.auth.signing_keys, &config.secrets.keys);
        if signing.is_empty() || sealing.is_empty() { Ok(None) } else { Self::read(signing, sealing).map(Some) }
    }

    /// Says what is missing where replicas must be given their keys, if something is.
    pub(crate) fn missing(config: &Config) -> Option<&'static str> {
        let is_missing = config.auth.signing_keys.is_empty() || config.secrets.keys.is_empty();
        (is_missing && config.replicas == Replicas::Multi).then_some(
            "auth.signing_keys and secrets.keys: replicas must share their keys; make them with \
             `switchboard token new-key` and give every replica the same",
        )
    }

    /// Returns what tells other replicas which keys these are.
    pub(crate) fn check(&self) -> KeyCheck {
        KeyCheck::of(&self.signing, &self.sealing)
    }

    fn read(signing: &[SecretText], sealing: &[SecretText]) -> anyhow::Result<Self> {
        let texts: Vec<&str> = signing.iter().map(SecretText::expose).collect();
        Ok(Self {
            signing: KeyRing::parse(&texts).context("auth.signing_keys")?,
            sealing: Sealer::from_texts(sealing).context("secrets.keys")?,
        })
    }
}

/// Returns where the key file is: beside a database file, otherwise in the data folder.
fn path(config: &Config, database: &Database) -> PathBuf {
    match database {
        Database::Sqlite(options) => {
            // A link leads to the same keys as the file itself.
            let file = std::fs::canonicalize(&options.path).unwrap_or_else(|_| options.path.clone());
            let mut name = file.into_os_string();
            name.push(".keys");
            name.into()
        }
        Database::Postgres(_) => config.data_dir.join("switchboard.keys"),
    }
}

impl KeyFile {
    /// Reads the file, or makes it with new keys. Of two processes that make it, one wins and both read the same.
    fn open(path: &Path) -> anyhow::Result<Self> {
        let named = || format!("the key file {}", path.display());
        match Self::read(path) {
            Ok(Some(file)) => return Ok(file),
            Ok(None) => {}
            Err(error) => return Err(error.context(named())),
        }
        Self::new().and_then(|new| new.write(path)).with_context(named)?;
        Self::read(path).with_context(named)?.with_context(named)
    }

    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            signing_keys: vec![KeyRing::generate_text(OWN_KEY, KeyAlgorithm::Hs256)?.expose().to_owned()],
            // No two files have the same id: where one was lost, its key can be given up and the next one used.
            secrets_keys: vec![Sealer::generate_text(&format!("{OWN_KEY}-{}", short_id()))?.expose().to_owned()],
        })
    }

    fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if file.metadata()?.permissions().mode() & 0o077 != 0 {
            bail!("others can read it; run: chmod 600 {}", path.display());
        }
        // The error of the parser would quote the line, and the line is a secret.
        let text = std::io::read_to_string(file)?;
        toml::from_str(&text).map(Some).map_err(|_| {
            anyhow::anyhow!(
                "it is not what was written there; restore it from a copy, since what it encrypted needs it"
            )
        })
    }

    /// Puts the file in place in one step, unless another process did.
    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = format!(
            "# Secret keys of this Switchboard: they sign its tokens and encrypt its secrets. Keep a copy.\n{}",
            toml::to_string(self)?
        );
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let draft = draft_beside(path);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        let placed = std::fs::hard_link(&draft, path);
        std::fs::remove_file(&draft)?;
        match placed {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        File::open(folder)?.sync_all()?;
        Ok(())
    }
}

/// Names a file beside `path` that no other process takes.
fn draft_beside(path: &Path) -> PathBuf {
    path.with_extension(format!("keys.{}", uuid::Uuid::new_v4().simple()))
}

/// Makes eight hexadecimal digits that hardly anybody has had before.
fn short_id() -> String {
    let mut id = uuid::Uuid::new_v4().simple().to_string();
    id.truncate(8);
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_made_once_and_is_the_owners() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data").join("switchboard.db.keys");
        let made = KeyFile::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read = KeyFile::open(&path).unwrap();
        assert_eq!((&made.signing_keys, &made.secrets_keys), (&read.signing_keys, &read.secrets_keys));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "the draft is gone");
        let other = KeyFile::open(&folder.path().join("other.keys")).unwrap();
        let id = |file: &KeyFile| file.secrets_keys[0].split_once(':').unwrap().0.to_owned();
        assert_ne!(id(&read), id(&other), "a file that replaces a lost one has a key of another name");
    }

    #[test]
    fn a_key_file_that_others_read_or_that_is_damaged_is_refused_without_showing_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        KeyFile::open(&path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert!(format!("{:#}", KeyFile::open(&path).err().unwrap()).contains("chmod 600"));
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "signing_keys = [\"hunter2\"").unwrap();
        assert!(!format!("{:#}", KeyFile::open(&path).err().unwrap()).contains("hunter2"));
    }
}
