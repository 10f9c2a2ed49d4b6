#include "store/redis/redis_blob.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

using Kind = RespReply::Kind;

constexpr int kMostRounds = 8;
// Pieces that no manifest names expire by themselves: their writer has died.
constexpr std::string_view kLooseSeconds = "600";

// Publishes a blob. KEYS: the manifest's, the pieces'. ARGV: the manifest; "1" to leave an existing
// blob; seconds to live, or "0". Answers 1 if done, 0 if there is a blob, -1 if a piece is gone. If
// it replaced a manifest, it answers with that.
constexpr std::string_view kPublishScript = R"(
local there = redis.call('getrange', KEYS[1], 0, 63)
if there ~= '' and string.sub(there, 1, 24) == string.sub(ARGV[1], 1, 24) then return 1 end
if #KEYS > 1 and redis.call('exists', unpack(KEYS, 2)) < #KEYS - 1 then return -1 end
if there ~= '' and ARGV[2] == '1' then return 0 end
if ARGV[3] == '0' then
  redis.call('set', KEYS[1], ARGV[1])
  for i = 2, #KEYS do redis.call('persist', KEYS[i]) end
else
  redis.call('set', KEYS[1], ARGV[1], 'EX', ARGV[3])
  for i = 2, #KEYS do redis.call('expire', KEYS[i], ARGV[3]) end
end
if there ~= '' then return there end
return 1)";

// Removes a blob. KEYS: the manifest's, the pieces'. ARGV: how the manifest begins. Answers how
// many manifests it removed.
constexpr std::string_view kRemoveScript = R"(
if redis.call('getrange', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then return 0 end
redis.call('unlink', unpack(KEYS))
return 1)";

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// An EVAL command of a script with its keys and arguments.
std::string Eval(std::string_view script, const std::vector<std::string>& keys,
                 const std::vector<std::string_view>& arguments) {
  std::string text;
  AppendRespCount(&text, 3 + keys.size() + arguments.size());
  AppendRespArgument(&text, "EVAL");
  AppendRespArgument(&text, script);
  AppendRespArgument(&text, std::to_string(keys.size()));
  for (const std::string& key : keys) AppendRespArgument(&text, key);
  for (const std::string_view argument : arguments) AppendRespArgument(&text, argument);
  return text;
}

}  // namespace

RedisBlob::RedisBlob(const Options& options, BlobRequest* request)
    : options_(options),
      request_(request),
      key_(ManifestKey(options.prefix, request->name)),
      slot_(RedisSlotOf(key_)) {}

void RedisBlob::Start() {
  if (request_->kind == BlobKind::kWrite) {
    StartWrite();
  } else {
    AskManifest();
  }
}

void RedisBlob::StartWrite() {
  const uint64_t bytes = request_->head.size() + request_->body_bytes;
  auto plan = PlanManifest(bytes, request_->head.size(), options_.piece_bytes, options_.random);
  if (!plan.ok()) return FinishWith(plan.status());
  own_ = *plan;
  own_bytes_ = EncodeManifest(own_);
  if (own_.pieces() == 0) {
    WriteSmall();
  } else if (request_->if_absent) {
    AskManifest();  // Ask before all the pieces are sent in vain.
  } else {
    WritePieces();
  }
}

// The key changed between two steps: begins the request again.
void RedisBlob::Again() {
  if (++rounds_ >= kMostRounds) {
    return FinishWith(Status(Code::kBusy, "other clients keep writing and removing this blob"));
  }
  if (request_->kind == BlobKind::kWrite) {
    WritePieces();
  } else {
    AskManifest();
  }
}

RedisCommand RedisBlob::NewCommand() const {
  RedisCommand command;
  command.slot = slot_;
  return command;
}

RespReader::Target RedisBlob::Place(uint64_t offset, uint64_t bytes) const {
  RespReader::Target place{};
  size_t used = 0;
  for (const std::span<std::byte> part : {request_->head, request_->body}) {
    const uint64_t skipped = std::min<uint64_t>(offset, part.size());
    const uint64_t taken = std::min<uint64_t>(bytes, part.size() - skipped);
    offset -= skipped;
    bytes -= taken;
    if (taken > 0) place[used++] = part.subspan(skipped, taken);
  }
  return place;
}

uint64_t RedisBlob::WantedBytes() const {
  if (request_->kind == BlobKind::kRead) return request_->head.size() + request_->body.size();
  return request_->kind == BlobKind::kLook ? request_->head.size() : 0;
}

std::string RedisBlob::TimeToLive() const {
  if (request_->expiry_unix_seconds == 0) return "0";
  // A server counts milliseconds in 64 bits from its own clock, and refuses a time that does not
  // fit.
  constexpr int64_t kFarAhead = int64_t{1} << 40;
  const int64_t seconds =
      std::min(request_->expiry_unix_seconds - options_.clock->UnixSeconds(), kFarAhead);
  return std::to_string(std::max<int64_t>(seconds, 1));
}

void RedisBlob::AskManifest() {
  stage_ = Stage::kManifest;
  RedisCommand command = NewCommand();
  if (request_->kind == BlobKind::kRead) {
    command.text = RespCommand({"GET", key_});
  } else {
    const uint64_t last = RedisManifest::kBytes + WantedBytes() - 1;
    command.text = RespCommand({"GETRANGE", key_, "0", std::to_string(last)});
  }
  const RespReader::Target place = Place(0, WantedBytes());
  command.aimed = true;
  command.into = {std::span<std::byte>(found_bytes_), place[0], place[1]};
  command.answer_bytes = InlineBytesOf(WantedBytes(), request_->head.size(), options_.piece_bytes);
  Send(std::move(command));
}

void RedisBlob::HearAnswer(uint64_t tag, const RedisAddress& /*from*/, RespReply reply) {
  if (stage_ == Stage::kPieces) {
    if (reply.bytes == 0) {
      piece_was_missing_ = true;
    } else if (reply.bytes != tag) {
      piece_was_wrong_ = true;
    }
  }
  answer_ = std::move(reply);
}

void RedisBlob::GiveUp(Status status) {
  // A reader of the cache may lack the right to remove.
  if (stage_ == Stage::kForget && request_->kind != BlobKind::kWrite) {
    return FinishWith(Status(Code::kNotFound));
  }
  // The publishing script stops at its first write, so no manifest names the pieces.
  if (stage_ == Stage::kPublish && status.code() == Code::kNoSpace) {
    pieces_are_loose_ = own_.pieces() > 0;
  }
  FinishWith(std::move(status));
}

void RedisBlob::GoOn() {
  switch (stage_) {
    case Stage::kManifest:
      return ManifestCame();
    case Stage::kPieces:
      return PiecesCame();
    case Stage::kPresence:
      return PresenceCame();
    case Stage::kForget:
    case Stage::kRemove:
      return TakenAway();
    case Stage::kRemoveUnknown:
      return FinishWith(answer_.integer > 0 ? Status() : Status(Code::kNotFound));
    case Stage::kWriteSmall:
      request_->existed = answer_.kind == Kind::kNil;
      return FinishWith(Status());
    case Stage::kWritePieces:
      return Publish();
    case Stage::kPublish:
      return Published();
  }
}

void RedisBlob::ManifestCame() {
  const BlobKind kind = request_->kind;
  if (answer_.kind != Kind::kBulk || answer_.bytes == 0) {
    if (kind == BlobKind::kWrite) return WritePieces();
    return FinishWith(Status(Code::kNotFound));
  }
  const uint64_t manifest_bytes = std::min<uint64_t>(answer_.bytes, found_bytes_.size());
  const auto found = DecodeManifest(std::span(found_bytes_).first(manifest_bytes));
  if (!found.ok()) {
    if (kind == BlobKind::kRemove && request_->version.empty()) {
      return Take(Stage::kRemoveUnknown);
    }
    return FinishWith(found.status());
  }
  found_ = *found;
  request_->blob_bytes = found_.blob_bytes;
  const std::string_view identity = IdentityOf(found_bytes_);
  if (kind == BlobKind::kRemove) {
    const bool other = !request_->version.empty() && request_->version != identity;
    return other ? FinishWith(Status(Code::kNotFound)) : Take(Stage::kRemove);
  }
  if (kind == BlobKind::kLook) request_->version = identity;
  if (kind == BlobKind::kWrite) return AskPresence();
  if (kind == BlobKind::kRead && found_.blob_bytes > WantedBytes()) {
    return FinishWith(Status(Code::kCorrupt, fmt::format("{} bytes do not fit into {}",
                                                         found_.blob_bytes, WantedBytes())));
  }
  const uint64_t here = kind == BlobKind::kRead
                            ? found_.inline_bytes
                            : std::min<uint64_t>(found_.inline_bytes, WantedBytes());
  if (answer_.bytes < RedisManifest::kBytes + here) {
    return FinishWith(Status(Code::kCorrupt, "a manifest is cut off"));
  }
  const uint64_t wanted = std::min<uint64_t>(WantedBytes(), found_.blob_bytes);
  if (wanted > found_.inline_bytes) {
    return AskPieces((wanted - found_.inline_bytes + found_.piece_bytes - 1) / found_.piece_bytes);
  }
  if (kind == BlobKind::kLook && found_.pieces() > 0) return AskPresence();
  FinishWith(Status());
}

void RedisBlob::AskPieces(uint64_t count) {
  stage_ = Stage::kPieces;
  for (uint64_t piece = 0; piece < count; ++piece) {
    RedisCommand command = NewCommand();
    command.text = RespCommand({"GET", PieceKey(key_, found_, piece)});
    command.aimed = true;
    // A Look wants less than the whole last piece; the reader drops the rest.
    const uint64_t offset = found_.PieceOffset(piece);
    command.into = Place(offset, std::min(found_.PieceBytes(piece), WantedBytes() - offset));
    command.tag = found_.PieceBytes(piece);
    command.answer_bytes = command.tag;
    Send(std::move(command));
  }
}

void RedisBlob::PiecesCame() {
  if (piece_was_missing_) return Take(Stage::kForget);
  if (piece_was_wrong_) return FinishWith(Status(Code::kCorrupt, "a piece has the wrong length"));
  if (request_->kind == BlobKind::kLook) return AskPresence();
  FinishWith(Status());
}

void RedisBlob::AskPresence() {
  stage_ = Stage::kPresence;
  answer_ = {};
  if (found_.pieces() == 0) return PresenceCame();
  std::string text;
  AppendRespCount(&text, 1 + found_.pieces());
  AppendRespArgument(&text, "EXISTS");
  for (const std::string& key : PieceKeys(key_, found_)) AppendRespArgument(&text, key);
  RedisCommand command = NewCommand();
  command.text = std::move(text);
  Send(std::move(command));
}

void RedisBlob::PresenceCame() {
  if (static_cast<uint64_t>(answer_.integer) != found_.pieces()) {
    piece_was_missing_ = true;
    return Take(Stage::kForget);
  }
  request_->existed = request_->kind == BlobKind::kWrite;
  FinishWith(Status());
}

void RedisBlob::Take(Stage stage) {
  stage_ = stage;
  RedisCommand command = NewCommand();
  if (stage == Stage::kRemoveUnknown) {
    command.text = RespCommand({"UNLINK", key_});
  } else {
    std::vector<std::string> keys = PieceKeys(key_, found_);
    keys.insert(keys.begin(), key_);
    command.text = Eval(kRemoveScript, keys, {IdentityOf(found_bytes_)});
  }
  Send(std::move(command));
}

void RedisBlob::TakenAway() {
  if (answer_.integer != 1) return Again();
  if (request_->kind == BlobKind::kWrite) return WritePieces();
  FinishWith(stage_ == Stage::kRemove ? Status() : Status(Code::kNotFound));
}

void RedisBlob::WriteSmall() {
  if (!request_->if_absent) return Publish();
  stage_ = Stage::kWriteSmall;
  const std::string ttl = TimeToLive();
  RedisCommand command = NewCommand();
  AppendRespCount(&command.text, ttl == "0" ? 4 : 6);
  AppendRespArgument(&command.text, "SET");
  AppendRespArgument(&command.text, key_);
  AppendRespLength(&command.text, own_bytes_.size() + own_.inline_bytes);
  command.text += TextOf(own_bytes_);
  command.payload = {request_->head, request_->body.first(request_->body_bytes)};
  command.end = "\r\n";
  AppendRespArgument(&command.end, "NX");
  if (ttl != "0") {
    AppendRespArgument(&command.end, "EX");
    AppendRespArgument(&command.end, ttl);
  }
  Send(std::move(command));
}

void RedisBlob::WritePieces() {
  stage_ = Stage::kWritePieces;
  pieces_are_loose_ = true;
  for (uint64_t piece = 0; piece < own_.pieces(); ++piece) {
    const uint64_t bytes = own_.PieceBytes(piece);
    const RespReader::Target place = Place(own_.PieceOffset(piece), bytes);
    RedisCommand command = NewCommand();
    AppendRespCount(&command.text, 5);
    AppendRespArgument(&command.text, "SET");
    AppendRespArgument(&command.text, PieceKey(key_, own_, piece));
    AppendRespLength(&command.text, bytes);
    command.payload = {place[0], place[1]};
    command.end = "\r\n";
    AppendRespArgument(&command.end, "EX");
    AppendRespArgument(&command.end, kLooseSeconds);
    Send(std::move(command));
  }
}

void RedisBlob::Publish() {
  stage_ = Stage::kPublish;
  // From here on a manifest may name the pieces, even if its answer is lost.
  pieces_are_loose_ = false;
  const std::vector<std::string> pieces = PieceKeys(key_, own_);
  const RespReader::Target place = Place(0, own_.inline_bytes);
  RedisCommand command = NewCommand();
  AppendRespCount(&command.text, 7 + pieces.size());
  AppendRespArgument(&command.text, "EVAL");
  AppendRespArgument(&command.text, kPublishScript);
  AppendRespArgument(&command.text, std::to_string(1 + pieces.size()));
  AppendRespArgument(&command.text, key_);
  for (const std::string& piece : pieces) AppendRespArgument(&command.text, piece);
  AppendRespLength(&command.text, own_bytes_.size() + own_.inline_bytes);
  command.text += TextOf(own_bytes_);
  command.payload = {place[0], place[1]};
  command.end = "\r\n";
  AppendRespArgument(&command.end, request_->if_absent ? "1" : "0");
  AppendRespArgument(&command.end, TimeToLive());
  Send(std::move(command));
}

void RedisBlob::Published() {
  if (answer_.kind == Kind::kBulk) {  // The replaced manifest: its pieces are of no use any more.
    const auto old = DecodeManifest(std::as_bytes(std::span(answer_.text)));
    if (old.ok() && old->pieces() > 0) {
      found_ = *old;
      replaced_pieces_ = true;
    }
    return FinishWith(Status());
  }
  pieces_are_loose_ = answer_.integer != 1;
  if (answer_.integer == -1) {
    return FinishWith(
        Status(Code::kNoSpace, "the server evicted a piece while the next was written"));
  }
  request_->existed = answer_.integer == 0;
  FinishWith(Status());
}

std::vector<RedisCommand> RedisBlob::Afterwards() {
  std::vector<std::string> keys;
  if (pieces_are_loose_) keys = PieceKeys(key_, own_);
  if (replaced_pieces_) keys = PieceKeys(key_, found_);
  if (keys.empty()) return {};
  RedisCommand command = NewCommand();
  AppendRespCount(&command.text, 1 + keys.size());
  AppendRespArgument(&command.text, "UNLINK");
  for (const std::string& key : keys) AppendRespArgument(&command.text, key);
  std::vector<RedisCommand> commands;
  commands.push_back(std::move(command));
  return commands;
}

void RedisBlob::Deliver(const Status& status) { Complete(request_, status); }

}  // namespace aquifer
