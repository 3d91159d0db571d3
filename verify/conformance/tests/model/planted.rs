//! Every fault of the model with the suite that catches it and the rule that it breaks.

/// Hands the list to the macro `$with`, once for each suite.
macro_rules! each_planted_fault {
    ($with:ident) => {
        $with! {
            serializer_suite:
            a_serializer_that_denies_the_free: DeniesTheFree breaks FreeIsGranted,
            a_serializer_that_does_not_advance_on_release: ReleaseKeepsEpoch breaks EpochsStrictlyIncrease,
            a_serializer_that_takes_over_at_the_same_epoch: TakeoverKeepsEpoch breaks OwnershipEndsAtATransition,
            a_serializer_that_answers_a_retried_acquire_with_held: RetryIsHeldByOther breaks RetriedAcquireFindsItsGrant,
            a_serializer_that_mints_an_epoch_for_a_retry: RetryMintsAnEpoch breaks RetriedAcquireFindsItsGrant,
            a_serializer_whose_retry_does_not_renew: RetryDoesNotRenew breaks RetriedAcquireFindsItsGrant,
            a_serializer_that_grants_an_id_again: GrantsTheIdAgain breaks GrantIdIsGrantedOnce,
            a_serializer_that_lets_the_same_holder_in: SameHolderGetsIn breaks GrantIsTheLock,
            a_serializer_whose_denial_spends_an_epoch: DenialSpendsAnEpoch breaks NoChangeWithoutSuccess,
            a_serializer_that_judges_the_holder_before_the_epoch: HolderBeforeEpoch breaks DenialsInOrder,
            a_serializer_that_releases_by_name: ReleaseGoesByName breaks EndedIsAlreadyEnded,
            a_serializer_whose_revoke_ignores_the_epoch: RevokeIgnoresTheEpoch breaks EndedIsAlreadyEnded,
            a_serializer_whose_expiry_frees: ExpiryFrees breaks OwnershipEndsAtATransition,
            a_serializer_that_renews_the_expired: RenewsTheExpired breaks OwnershipEndsAtATransition,
            a_serializer_whose_leases_never_expire: NeverExpires breaks OwnershipEndsAtATransition,
            a_serializer_whose_leases_expire_early: ExpiresEarly breaks TtlIsKept,
            a_serializer_whose_renewal_does_not_rearm: RenewalDoesNotRearm breaks TtlIsKept,
            a_serializer_that_clamps_the_ttl: ClampsTheTtl breaks TtlIsKept,
            a_serializer_that_forgets_the_hold_off: ForgetsTheHoldOff breaks HoldOffKeepsTheRevokedOut,
            a_serializer_that_keeps_one_hold_off: KeepsOneHoldOff breaks HoldOffKeepsTheRevokedOut,
            a_serializer_whose_restart_ends_hold_offs: RestartEndsHoldOffs breaks HoldOffKeepsTheRevokedOut,
            a_serializer_whose_hold_off_keeps_all_out: HoldOffKeepsAllOut breaks HoldOffKeepsTheRevokedOut,
            a_serializer_whose_restart_forgets_rows: RestartForgetsRows breaks RestartKeepsRows,
            a_serializer_that_folds_case: FoldsCase breaks NamesAreKeptApart,
            a_serializer_that_accepts_control_characters: AcceptsControlCharacters breaks NamesAreKeptApart,
            a_serializer_whose_revision_stands_still: RevisionStandsStill breaks RevisionGrows,
            a_serializer_whose_batch_stops_at_a_failure: BatchStopsAtAFailure breaks BatchAnswersInOrder,
            a_serializer_whose_list_ignores_the_prefix: ListIgnoresThePrefix breaks ListIsComplete,
            a_serializer_with_a_constant_authority: ConstantAuthority breaks FenceCarriesTheAuthority,
            a_serializer_that_reuses_an_epoch_after_dropping_a_row: DropsRowsWithoutAFloor breaks EpochsStrictlyIncrease,
            a_serializer_that_drops_rows_that_keep_someone_out: DropsRowsThatKeepSomeoneOut breaks HoldOffKeepsTheRevokedOut,
            a_serializer_that_judges_expiry_by_wall_clock: JudgesByWallClock breaks WallClockDecidesNothing,
            a_queue_that_serves_the_last_first: ServesTheLastFirst breaks WaitersAreServedInOrder,
            a_queue_that_starves: NeverHandsOver breaks HandOverIsDirect,
            a_queue_that_is_served_at_expiry_only: HandsOverAtExpiryOnly breaks HandOverIsDirect,
            a_queue_that_is_not_served_at_expiry: DoesNotHandOverAtExpiry breaks HandOverIsDirect,
            a_queue_that_a_plain_acquire_overtakes: PlainAcquireOvertakes breaks WaitersAreServedInOrder,
            a_queue_in_which_a_retry_loses_its_place: RetryLosesItsPlace breaks WaitersAreServedInOrder,
            a_queue_with_a_ghost_waiter: LeaverStays breaks LeaversLeaveNoGhost,
            a_queue_whose_dead_waiter_holds_for_a_ttl: ClaimsDoNotLapse breaks LeaversLeaveNoGhost,
            a_queue_whose_waits_do_not_end: ShortWaitStays breaks WaitsEnd,
            a_queue_that_calls_a_wait_that_ran_out_held: ShortWaitIsHeldByOther breaks WaitsEnd,
            a_queue_that_takes_the_impatient: QueuesTheImpatient breaks WaitsEnd,
            a_queue_that_the_held_off_block: HeldOffBlocksTheQueue breaks HoldOffKeepsTheRevokedOut,
            a_queue_whose_claims_do_not_lapse: ClaimsDoNotLapse breaks ClaimsLapse,
            a_queue_whose_claims_lapse_though_renewed: ClaimsLapseThoughRenewed breaks ClaimsLapse,
            a_queue_whose_claim_shortens_the_next_grant: ClaimShortensTheNextGrant breaks ClaimsLapse,
            a_queue_that_hands_over_for_the_whole_ttl: HandsOverForTheWholeTtl breaks HandOverIsDirect,
            a_queue_without_a_bound: QueueIsUnbounded breaks QueueIsBounded,
            a_queue_that_shows_the_last_first: QueueShowsTheLastFirst breaks QueueShowsWhoWaits,
            a_restart_that_grants_those_it_forgot: RestartGrantsThoseItForgot breaks RestartLeavesNoGhost,
            a_watch_that_misses_revokes: WatchMissesRevokes breaks WatchShowsThePresent,
            a_watch_that_misses_hand_overs: WatchMissesHandOvers breaks WatchShowsThePresent,
        }

        $with! {
            fenced_resource_suite:
            a_resource_that_checks_nothing: ChecksNothing breaks StaleFenceIsRejected,
            a_resource_that_writes_before_it_checks: WritesBeforeItChecks breaks StaleFenceIsRejected,
            a_resource_whose_release_keeps_the_epoch: ReleaseKeepsEpoch breaks StaleFenceIsRejected,
            a_resource_whose_rows_are_dropped_without_a_floor:
                DropsRowsWithoutAFloor breaks StaleFenceIsRejected,
            a_resource_that_checks_before_its_transaction:
                ChecksBeforeItsLock breaks CheckAndWriteAreOneStep,
            a_resource_that_checks_outside_its_file_lock:
                ChecksOutsideItsFileLock breaks CheckAndWriteAreOneStep,
            a_resource_that_checks_a_snapshot_in_its_file_lock:
                ChecksASnapshotInItsFileLock breaks CheckAndWriteAreOneStep,
            a_resource_that_keeps_all_in_one_place: KeepsAllInOnePlace breaks OwnerMayWrite,
            a_resource_that_ignores_the_writer: IgnoresTheWriter breaks WriterIsTheHolder,
            a_resource_that_ignores_the_fences_holder: IgnoresTheFencesHolder breaks WriterIsTheHolder,
            a_resource_that_compares_epochs_with_at_least:
                AcceptsHigherEpochs breaks ForgedFenceIsRejected,
            a_resource_that_ignores_the_authority: IgnoresTheAuthority breaks ForgedFenceIsRejected,
            a_resource_that_rejects_the_expired: RejectsTheExpired breaks OwnerMayWrite,
        }

        $with! {
            registers_suite:
            registers_that_check_nothing: RegisterChecksNothing breaks StaleFenceIsRejected,
            registers_that_ignore_the_writer: RegisterIgnoresTheWriter breaks WriterIsTheHolder,
            registers_that_write_a_retry_again: RegisterRetryWritesAgain breaks RegisterWriteIsRecognized,
            registers_that_ignore_the_revision: RegisterIgnoresTheRevision breaks RegisterComparesAndCounts,
            registers_that_start_over: RegisterStartsOver breaks RegisterComparesAndCounts,
            registers_that_cut_the_value: RegisterCutsTheValue breaks RegisterKeepsItsValue,
            registers_that_are_lost_at_a_restart: RegisterIsLostAtRestart breaks RegisterKeepsItsValue,
            registers_that_go_with_their_idle_row: RegisterGoesWithItsIdleRow breaks RegisterKeepsItsValue,
            a_release_with_a_value_that_only_writes: ReleaseWithValueKeepsTheLease breaks BothOrNeither,
            a_release_with_a_value_that_only_releases: ReleaseWithValueLosesTheValue breaks BothOrNeither,
            a_conflict_that_releases: ConflictReleasesAnyway breaks BothOrNeither,
            a_value_that_is_there_and_keeps_the_lease: WrittenValueIsNotReleasedWith breaks BothOrNeither,
            a_release_with_a_value_that_is_not_recognized:
                ReleaseWithValueIsNotRecognized breaks ReleaseWithValueIsRecognized,
            a_release_with_a_value_that_starves_the_queue:
                ReleaseWithValueDoesNotHandOver breaks HandOverIsDirect,
        }
    };
}

pub(crate) use each_planted_fault;
