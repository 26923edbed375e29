//! Passwords: hashed and verified with Argon2id, beside the asynchronous threads and not too many at once.

use std::sync::Arc;

use argon2::password_hash::phc;
use argon2::{Algorithm, Argon2, Params, PasswordHasher as _, PasswordVerifier as _, Version};
use switchboard_model::user::PasswordHash;
use switchboard_model::wire::auth::Password;
use switchboard_model::wire::code::ErrorCode;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::ApiResult;
use crate::error::ApiError;

/// How many requests may wait for a hash, beyond those that are being worked on.
const WAITING: usize = 64;

/// The bytes of a hash.
const OUTPUT_BYTES: usize = 32;

/// What a hash costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashing(Params);

impl Hashing {
    /// Chooses the memory in KiB, the passes over it and the lanes.
    ///
    /// # Errors
    /// Fails for what Argon2 cannot do.
    pub fn new(memory_kib: u32, passes: u32, lanes: u32) -> Result<Self, argon2::Error> {
        Params::new(memory_kib, passes, lanes, Some(OUTPUT_BYTES)).map(Self)
    }

    fn argon2(&self) -> Argon2<'static> {
        Argon2::new(Algorithm::Argon2id, Version::V0x13, self.0.clone())
    }

    /// Hashes a password, which takes a core for a while.
    ///
    /// # Errors
    /// Fails when the operating system has no random bytes to give.
    pub fn hash(&self, password: &Password) -> Result<PasswordHash, argon2::password_hash::Error> {
        let hash = self.argon2().hash_password(password.expose().as_bytes())?;
        Ok(PasswordHash::from_phc(hash.to_string()))
    }

    /// Makes a hash that no password has and that takes as long to verify as any.
    fn nobodys(&self) -> PasswordHash {
        let (m, t, p) = (self.0.m_cost(), self.0.t_cost(), self.0.p_cost());
        let (salt, output) = ("A".repeat(22), "A".repeat(43));
        PasswordHash::from_phc(format!("$argon2id$v=19$m={m},t={t},p={p}${salt}${output}"))
    }

    fn verify(&self, password: &Password, stored: &PasswordHash) -> Result<Verdict, argon2::password_hash::Error> {
        let hash = phc::PasswordHash::new(stored.as_phc())?;
        match self.argon2().verify_password(password.expose().as_bytes(), &hash) {
            Ok(()) => {}
            Err(argon2::password_hash::Error::PasswordInvalid) => return Ok(Verdict::Wrong),
            Err(error) => return Err(error),
        }
        let is_current = hash.algorithm == Algorithm::Argon2id.ident() && Params::try_from(&hash)? == self.0;
        if is_current { Ok(Verdict::Right) } else { self.hash(password).map(Verdict::Outdated) }
    }
}

impl Default for Hashing {
    /// The parameters that OWASP recommends: 19 MiB, two passes, one lane.
    fn default() -> Self {
        // These are within the bounds of Argon2, as a test shows; its own default is the same.
        Self::new(19_456, 2, 1).unwrap_or_else(|_| Self(Params::default()))
    }
}

/// What verifying gave.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It is not the password.
    Wrong,
    /// It is.
    Right,
    /// It is, and its hash should be replaced by this one, which costs what is asked for now.
    Outdated(PasswordHash),
}

/// Hashes and verifies.
pub(crate) struct Passwords {
    hashing: Hashing,
    /// Whoever is worked on or waits; nobody waits behind too many.
    places: Arc<Semaphore>,
    /// Whoever is worked on: each takes a core and its memory.
    turns: Arc<Semaphore>,
    tracker: TaskTracker,
}

impl Passwords {
    /// Works on threads that `tracker` waits for.
    pub(crate) fn new(hashing: Hashing, tracker: TaskTracker) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            hashing,
            places: Arc::new(Semaphore::new(cores + WAITING)),
            turns: Arc::new(Semaphore::new(cores)),
            tracker,
        }
    }

    /// Hashes a password that somebody wants to have.
    ///
    /// # Errors
    /// `validation_failed` blames `field` for a password that is too short or too long; `unavailable` while too
    /// many wait.
    pub(crate) async fn hash(&self, field: &str, password: Password) -> ApiResult<PasswordHash> {
        if !password.has_allowed_length() {
            let detail = format!("must have {} to {} characters", Password::SHORTEST, Password::LONGEST);
            return Err(ApiError::field(ErrorCode::ValidationFailed, field, detail));
        }
        let hashing = self.hashing.clone();
        self.work(move || hashing.hash(&password)).await
    }

    /// Verifies a password. Without a stored hash it is wrong, after as much work.
    ///
    /// # Errors
    /// `unavailable` while too many wait.
    pub(crate) async fn verify(&self, password: Password, stored: Option<PasswordHash>) -> ApiResult<Verdict> {
        let hashing = self.hashing.clone();
        let stored = stored.unwrap_or_else(|| hashing.nobodys());
        self.work(move || hashing.verify(&password, &stored)).await
    }

    async fn work<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, argon2::password_hash::Error> + Send + 'static,
    ) -> ApiResult<T> {
        let busy = |_| ApiError::unavailable("too many passwords are being checked now; repeat the request");
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(busy)?;
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| ApiError::internal())?;
        // Both stay taken until the work is done, also when the caller has gone away meanwhile.
        let working = self.tracker.spawn_blocking(move || {
            let _held = (place, turn);
            job()
        });
        let failed = |error: &dyn std::error::Error| {
            tracing::error!(error = %error, "a password could not be hashed");
            ApiError::internal()
        };
        working.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cheap(memory_kib: u32) -> Hashing {
        Hashing::new(memory_kib, 1, 1).unwrap()
    }

    fn passwords(hashing: Hashing) -> Passwords {
        Passwords::new(hashing, TaskTracker::new())
    }

    #[test]
    fn the_default_is_what_owasp_recommends() {
        let Hashing(params) = Hashing::default();
        assert_eq!((params.m_cost(), params.t_cost(), params.p_cost()), (19_456, 2, 1));
        assert_eq!(Hashing::default(), Hashing::new(19_456, 2, 1).unwrap());
    }

    #[tokio::test]
    async fn the_right_password_is_told_from_a_wrong_one_and_from_none() {
        let passwords = passwords(cheap(8));
        let hash = passwords.hash("password", Password::new("correct horse")).await.unwrap();
        assert!(hash.as_phc().starts_with("$argon2id$v=19$m=8,t=1,p=1$"));
        let verify = async |text: &str, stored: Option<&PasswordHash>| {
            passwords.verify(Password::new(text), stored.cloned()).await.unwrap()
        };
        assert!(matches!(verify("correct horse", Some(&hash)).await, Verdict::Right));
        for wrong in ["correct horsf", "", "correct horse\0", &"x".repeat(10_000)] {
            assert!(matches!(verify(wrong, Some(&hash)).await, Verdict::Wrong));
            assert!(matches!(verify(wrong, None).await, Verdict::Wrong));
        }
    }

    #[tokio::test]
    async fn no_password_is_cut() {
        let passwords = passwords(cheap(8));
        let hash = passwords.hash("password", Password::new("é".repeat(128))).await.unwrap();
        let shorter = passwords.verify(Password::new("é".repeat(127)), Some(hash)).await.unwrap();
        assert!(matches!(shorter, Verdict::Wrong));
        for bad in ["é".repeat(129), "1234567".to_owned()] {
            assert!(passwords.hash("password", Password::new(bad)).await.is_err());
        }
    }

    #[tokio::test]
    async fn a_hash_of_other_cost_is_replaced() {
        let old = passwords(cheap(8)).hash("password", Password::new("correct horse")).await.unwrap();
        let verdict = passwords(cheap(16)).verify(Password::new("correct horse"), Some(old.clone())).await.unwrap();
        let Verdict::Outdated(new) = verdict else { panic!("{verdict:?}") };
        assert!(new.as_phc().contains("m=16,"));
        assert!(matches!(
            passwords(cheap(16)).verify(Password::new("wrong horse"), Some(old)).await.unwrap(),
            Verdict::Wrong
        ));
    }

    #[tokio::test]
    async fn nobody_waits_behind_too_many() {
        let passwords = passwords(cheap(8));
        let all = passwords.places.available_permits();
        let taken = Arc::clone(&passwords.places).acquire_many_owned(u32::try_from(all).unwrap()).await.unwrap();
        let refused = passwords.verify(Password::new("x"), None).await.unwrap_err();
        assert!(refused.to_string().starts_with("unavailable"), "{refused}");
        drop(taken);
        assert!(passwords.verify(Password::new("x"), None).await.is_ok());
        assert_eq!(passwords.places.available_permits(), all);
    }
}
