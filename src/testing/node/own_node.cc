#include "testing/node/own_node.h"

#include <utility>

namespace aquifer {
namespace {

// A client that keeps the node alive, and passes every call on.
class ClientOfOwnNode final : public Cache {
 public:
  ClientOfOwnNode(std::shared_ptr<OwnNode> node, std::unique_ptr<Cache> client)
      : node_(std::move(node)), client_(std::move(client)) {}

  Result<std::unique_ptr<Cache>> Join(const ClientOptions& options) override {
    AQ_ASSIGN_OR_RETURN(std::unique_ptr<Cache> joined, client_->Join(options));
    return std::unique_ptr<Cache>(std::make_unique<ClientOfOwnNode>(node_, std::move(joined)));
  }
  void RegisterLayout(RegisterLayoutRequest* request) override { client_->RegisterLayout(request); }
  void Match(MatchRequest* request) override { client_->Match(request); }
  void Fetch(FetchRequest* request) override { client_->Fetch(request); }
  void Reserve(ReserveRequest* request) override { client_->Reserve(request); }
  void Commit(CommitRequest* request) override { client_->Commit(request); }
  void Flush(FlushRequest* request) override { client_->Flush(request); }
  void Pin(PinRequest* request) override { client_->Pin(request); }
  void Prestage(PrestageRequest* request) override { client_->Prestage(request); }
  void Evict(EvictRequest* request) override { client_->Evict(request); }
  void Drain(DrainRequest* request) override { client_->Drain(request); }
  void Stats(StatsRequest* request) override { client_->Stats(request); }
  void Release(std::span<const ReleaseOp> leases) override { client_->Release(leases); }
  void Abort(std::span<const ReservationId> reservations) override { client_->Abort(reservations); }
  void Hint(const SessionForecast& forecast) override { client_->Hint(forecast); }
  void ReportPrefill(const PrefillReport& report) override { client_->ReportPrefill(report); }
  void Cancel(Request* request) override { client_->Cancel(request); }
  size_t Poll() override { return client_->Poll(); }
  int event_fd() const override { return client_->event_fd(); }
  bool Wait(const Request& request, int64_t timeout_nanos) override {
    return client_->Wait(request, timeout_nanos);
  }

 private:
  // Shared by all its clients; the node ends after the last of them.
  const std::shared_ptr<OwnNode> node_;
  const std::unique_ptr<Cache> client_;
};

}  // namespace

Result<std::shared_ptr<OwnNode>> OwnNode::Start(const CacheOptions& options, ServerOptions server) {
  auto own = std::make_shared<OwnNode>();
  server.socket = own->socket();
  if (!server.admit) server.admit = AdmitOwnUser;
  AQ_ASSIGN_OR_RETURN(own->node_, Node::Start({.cache = options, .server = std::move(server)}));
  return own;
}

Result<std::unique_ptr<Cache>> ConnectToOwnNode(const CacheOptions& options,
                                                const ClientOptions& client) {
  AQ_ASSIGN_OR_RETURN(std::shared_ptr<OwnNode> node, OwnNode::Start(options));
  AQ_ASSIGN_OR_RETURN(std::unique_ptr<Cache> connected,
                      Connect({.socket = node->socket()}, client));
  return std::unique_ptr<Cache>(
      std::make_unique<ClientOfOwnNode>(std::move(node), std::move(connected)));
}

}  // namespace aquifer
