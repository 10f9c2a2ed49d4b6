// Finds again what is on one drive: reads every file's header, then the deletion maps and footers
// of those that are ours, and scans the segments that have no whole footer. Payloads are not read.
//
// Nothing found on the drive is an error; what cannot be used is counted, described and left out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tier/nvme/nvme_drive.h"

namespace aquifer {

class DriveRecovery {
 public:
  explicit DriveRecovery(NvmeDrive* drive) : drive_(drive), shared_(drive->shared_) {}

  // Ends with drive->OnRecovered().
  void Start();

 private:
  struct Job;
  using JobPointer = std::shared_ptr<Job>;  // Held by the requests and tasks that work on it.

  void ReadHeaders();
  void SyncAndReadHeader(uint32_t segment);
  void OnHeader(uint32_t segment, const Status& status,
                std::span<const std::byte, kPageBytes> page);
  void ChooseDriveId();
  void StartJobs();
  void OnMapsAndTail(const JobPointer& job, std::vector<IoRequest>& requests);
  bool ChooseMap(const JobPointer& job);
  void OnFooterRead(const JobPointer& job);
  void ParseFooter(const JobPointer& job);
  void StartScan(const JobPointer& job);
  void Scan(const JobPointer& job);
  void ApplyPage(const JobPointer& job, const RecordPage& page,
                 std::span<const std::byte, kPageBytes> bytes);
  void Apply(const JobPointer& job, uint32_t number,
             std::span<const std::byte, kRecordBytes> bytes);
  void EndJob(const JobPointer& job);
  void Resume(const JobPointer& job);
  void Seal(const JobPointer& job);
  void Unreadable(const JobPointer& job, const Status& status);
  void KeepMarksOfUnread(const JobPointer& job);
  void Finish();

  void Skip(uint32_t segment, NvmeDrive::State state, const std::string& why);
  void Say(uint32_t segment, const std::string& what);
  void Read(uint32_t segment, const std::vector<std::pair<uint64_t, std::span<std::byte>>>& pieces,
            std::shared_ptr<void> keep, NvmeIo::Done done);

  NvmeDrive* const drive_;
  NvmeShared* const shared_;
  std::vector<SegmentHeader> headers_;  // By segment; only of those that are ours.
  std::vector<bool> has_header_;
  std::vector<uint32_t> removed_;
  size_t next_file_ = 0;
  size_t running_ = 0;
  size_t unreadable_headers_ = 0;
  bool unsynced_ = false;  // A file could not be synced.
  bool finished_ = false;
  JobPointer unsealed_;  // The youngest segment that can be filled further.
  Status last_error_;
};

}  // namespace aquifer
