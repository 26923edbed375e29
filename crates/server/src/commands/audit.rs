//! `audit`: who changed what, and when.

use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::pin::pin;

use anyhow::{Context as _, Result};
use futures_util::TryStreamExt as _;
use switchboard_client::ClientError;
use switchboard_model::audit::AuditFilter;
use tempfile::NamedTempFile;

use super::listing::collect;
use super::{Session, remotely};
use crate::cli::{AuditCommand, RemoteCommand};
use crate::output::{self, time};

/// Reads the audit log.
pub(crate) async fn run(command: RemoteCommand<AuditCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| match command {
        AuditCommand::List { selection, limit } => {
            let filter = selection.into();
            let entries = collect(limit, async |page| session.client.list_audit(&filter, page).await).await?;
            session.form.list(&entries, ["AT", "ACTOR", "ACTION", "SUBJECT", "REQUEST"], |entry| {
                [
                    time(Some(entry.at)),
                    entry.actor.clone(),
                    entry.action.clone(),
                    entry.subject.clone(),
                    entry.request_id.clone(),
                ]
            })
        }
        AuditCommand::Export { selection, output: None } => {
            export(&session, &selection.into(), output::line).await.map(drop)
        }
        AuditCommand::Export { selection, output: Some(path) } => export_to(&session, &selection.into(), &path).await,
    })
    .await
}

/// Writes a file in one step, so that no part is ever taken for the whole.
async fn export_to(session: &Session, filter: &AuditFilter, path: &Path) -> Result<()> {
    let named = || format!("cannot write {}", path.display());
    // What a link leads to is written, not the link; and a device or a pipe is no file that could be replaced.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let path = target.as_path();
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let mut out = BufWriter::new(std::fs::OpenOptions::new().write(true).open(path).with_context(named)?);
        let count = export(session, filter, |line| writeln!(out, "{line}").with_context(named)).await?;
        out.flush().with_context(named)?;
        return session.form.said(format_args!("Wrote {count} entries to {}.", path.display()));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut draft = BufWriter::new(NamedTempFile::new_in(folder).with_context(named)?);
    let count = export(session, filter, |line| writeln!(draft, "{line}").with_context(named)).await?;
    let draft = draft.into_inner().map_err(|error| error.into_error()).with_context(named)?;
    draft.as_file().sync_all().with_context(named)?;
    draft.persist(path).with_context(named)?;
    session.form.said(format_args!("Wrote {count} entries to {}.", path.display()))
}

/// Hands over each line as it arrives, and returns how many there were.
async fn export(session: &Session, filter: &AuditFilter, mut write: impl FnMut(String) -> Result<()>) -> Result<u64> {
    let mut lines = pin!(session.client.export_audit(filter).await?);
    let mut count = 0;
    while let Some(line) = lines.try_next().await.map_err(|error| broken(error, count))? {
        write(line)?;
        count += 1;
    }
    Ok(count)
}

/// Says that an export is not whole; the advice for servers that do not answer at all would mislead.
fn broken(error: ClientError, count: u64) -> anyhow::Error {
    anyhow::anyhow!("{:#}", anyhow::Error::from(error))
        .context(format!("the export broke off after {count} entries, so that some are missing; try again"))
}
