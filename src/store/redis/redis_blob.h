// Carries out one BlobRequest in Redis, step by step: Read, Look, Write or Remove. redis_manifest.h
// has the keys and values. docs/formats/redis.md says why the steps are safe beside other writers.
//
// A blob that lost a piece to the server's eviction is removed, so that it can be written anew.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/crypto/random.h"
#include "store/blob_store.h"
#include "store/redis/redis_manifest.h"
#include "store/redis/redis_operation.h"

namespace aquifer {

class RedisBlob final : public RedisOperation {
 public:
  struct Options {
    std::string prefix;
    uint32_t piece_bytes = 0;
    const Clock* clock = nullptr;
    Random* random = nullptr;
  };

  RedisBlob(const Options& options, BlobRequest* request);

  void Start() override;
  std::vector<RedisCommand> Afterwards() override;
  void Deliver(const Status& status) override;

  bool piece_was_missing() const { return piece_was_missing_; }

 private:
  // The purpose of the commands under way.
  enum class Stage : uint8_t {
    kManifest,       // Reads the manifest, if there is one.
    kPieces,         // Reads the pieces into the request's memory.
    kPresence,       // Checks that all pieces are there.
    kForget,         // Removes a broken blob, unless it was replaced meanwhile.
    kRemove,         // Removes a blob on request.
    kRemoveUnknown,  // Removes a value that we did not write.
    kWriteSmall,
    kWritePieces,
    kPublish,
  };

  void HearAnswer(uint64_t tag, const RedisAddress& from, RespReply reply) override;
  void GoOn() override;
  void GiveUp(Status status) override;

  void StartWrite();
  void AskManifest();
  void ManifestCame();
  void AskPieces(uint64_t count);
  void PiecesCame();
  void AskPresence();
  void PresenceCame();
  void Take(Stage stage);
  void TakenAway();
  void WriteSmall();
  void WritePieces();
  void Publish();
  void Published();
  void Again();

  RedisCommand NewCommand() const;
  // How many bytes of the blob the request wants.
  uint64_t WantedBytes() const;
  // The request's memory for a part of the blob.
  RespReader::Target Place(uint64_t offset, uint64_t bytes) const;
  std::string TimeToLive() const;

  const Options options_;
  BlobRequest* const request_;
  const std::string key_;
  const uint16_t slot_;
  Stage stage_ = Stage::kManifest;
  int rounds_ = 0;  // How often the request was begun again.

  RedisManifest::Bytes found_bytes_{};  // Of the manifest that was found.
  RedisManifest found_;
  RedisManifest::Bytes own_bytes_{};  // Of the manifest that we write.
  RedisManifest own_;
  bool pieces_are_loose_ = false;  // Our pieces may be there, and no manifest names them.
  bool replaced_pieces_ = false;   // The blob that found_ names has been replaced.

  RespReply answer_;  // The last answer.
  bool piece_was_missing_ = false;
  bool piece_was_wrong_ = false;
};

}  // namespace aquifer
