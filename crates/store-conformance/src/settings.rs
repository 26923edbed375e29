//! Fleet settings: defaults and compare-and-set.

use std::collections::BTreeMap;

use switchboard_model::setting::{FleetSettings, Versioned};
use switchboard_store_api::PutOutcome;

use crate::Backend;
use crate::fixtures::system;

const PAUSED: FleetSettings = FleetSettings { scheduler_enabled: true, pause_all: true, pools: BTreeMap::new() };

pub(crate) async fn fleet_settings_start_as_defaults_with_version_zero(backend: &dyn Backend) {
    let settings = backend.stores().await.settings;
    assert_eq!(settings.fleet().await.unwrap(), Versioned { version: 0, value: FleetSettings::default() });
}

pub(crate) async fn put_writes_only_over_the_expected_version(backend: &dyn Backend) {
    let settings = backend.stores().await.settings;
    let off = FleetSettings { scheduler_enabled: false, ..FleetSettings::default() };
    assert_eq!(settings.put_fleet(&system(), 7, &PAUSED).await.unwrap(), PutOutcome::VersionMismatch(0));
    assert_eq!(settings.put_fleet(&system(), 0, &PAUSED).await.unwrap(), PutOutcome::Written(1));
    assert_eq!(settings.put_fleet(&system(), 0, &off).await.unwrap(), PutOutcome::VersionMismatch(1));
    assert_eq!(settings.fleet().await.unwrap(), Versioned { version: 1, value: PAUSED });
    assert_eq!(settings.put_fleet(&system(), 1, &off).await.unwrap(), PutOutcome::Written(2));
    assert_eq!(settings.fleet().await.unwrap(), Versioned { version: 2, value: off });
}
