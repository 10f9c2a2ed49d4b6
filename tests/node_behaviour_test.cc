// The behaviour suite over a node, through its socket and shared memory.
#include "testing/behaviour/cache_behaviour.h"
#include "testing/node/own_node.h"

namespace aquifer {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Connect, CacheBehaviour,
    testing::Values(CacheFactory{.name = "Dram", .open = ConnectToOwnNode},
                    CacheFactory{.name = "Nvme", .open = ConnectToOwnNode, .has_nvme = true}),
    CacheFactoryName);

}  // namespace
}  // namespace aquifer
