//! What the safety check can find, how bad it is, and the exit code that says so.

use serde::Serialize;

/// How a finding is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// As it should be.
    Fine,
    /// It works, but less well than it could.
    Warning,
    /// Replicas would harm each other or their clients: logged, and refused under `strict`.
    Unsafe,
    /// Nothing can be served in this way, so no boot goes on.
    Refused,
}

/// What is looked at; each has its own exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Topic {
    Database,
    Schema,
    Listen,
    Connections,
    Clock,
    Replicas,
    Keys,
    Pooler,
    File,
    Coverage,
    State,
}

impl Topic {
    /// Every topic, in the order of the exit codes.
    pub(crate) const ALL: [Self; 11] = [
        Self::Database,
        Self::Schema,
        Self::Listen,
        Self::Connections,
        Self::Clock,
        Self::Replicas,
        Self::Keys,
        Self::Pooler,
        Self::File,
        Self::Coverage,
        Self::State,
    ];

    /// Returns the exit code of a check or a boot that ends with an unsafe finding about it.
    pub(crate) const fn exit_code(self) -> u8 {
        match self {
            Self::Database => 10,
            Self::Schema => 11,
            Self::Listen => 12,
            Self::Connections => 13,
            Self::Clock => 14,
            Self::Replicas => 15,
            Self::Keys => 16,
            Self::Pooler => 17,
            Self::File => 18,
            Self::Coverage => 19,
            Self::State => 20,
        }
    }

    /// Returns its name in output, logs and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Schema => "schema",
            Self::Listen => "listen",
            Self::Connections => "connections",
            Self::Clock => "clock",
            Self::Replicas => "replicas",
            Self::Keys => "keys",
            Self::Pooler => "pooler",
            Self::File => "file",
            Self::Coverage => "coverage",
            Self::State => "state",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) topic: Topic,
    pub(crate) level: Level,
    /// What was seen, and for anything but fine which setting to change.
    pub(crate) detail: String,
}

impl Finding {
    pub(super) fn new(topic: Topic, level: Level, detail: impl Into<String>) -> Self {
        Self { topic, level, detail: detail.into() }
    }
}

/// Returns the first of the worst findings that are at least as bad as `level`.
pub(super) fn worst(findings: &[Finding], level: Level) -> Option<&Finding> {
    let worst = findings.iter().map(|finding| finding.level).max().filter(|worst| *worst >= level)?;
    findings.iter().find(|finding| finding.level == worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_topic_has_a_code_and_a_name_of_its_own() {
        let mut codes: Vec<_> = Topic::ALL.into_iter().map(Topic::exit_code).collect();
        codes.dedup();
        assert_eq!(codes, (10..10 + u8::try_from(Topic::ALL.len()).unwrap()).collect::<Vec<_>>());
        for topic in Topic::ALL {
            assert_eq!(serde_json::to_value(topic).unwrap(), topic.as_str());
        }
    }

    #[test]
    fn the_exit_code_is_that_of_the_first_of_the_worst() {
        let findings = [
            Finding::new(Topic::Listen, Level::Warning, ""),
            Finding::new(Topic::Connections, Level::Unsafe, ""),
            Finding::new(Topic::Replicas, Level::Unsafe, ""),
            Finding::new(Topic::Keys, Level::Refused, ""),
        ];
        let topic = |findings, level| worst(findings, level).map(|finding| finding.topic);
        assert_eq!(topic(&findings, Level::Unsafe), Some(Topic::Keys));
        assert_eq!(topic(&findings[..3], Level::Unsafe), Some(Topic::Connections));
        assert_eq!(topic(&findings[..3], Level::Refused), None);
        assert_eq!(topic(&findings[..1], Level::Unsafe), None);
    }
}
