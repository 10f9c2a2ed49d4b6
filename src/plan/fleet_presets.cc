// Data sheets: dense bf16, no sparsity. Prices by the hour are what renting one costs on the open
// market, rounded, and differ by a factor of two between offers: put your own into the file.
//
// The efficiency is what we measured on an H200 with Llama 3 8B in plain PyTorch: 1 024 to 131 072
// tokens in 31 ms to 11.8 s are 54 to 57 % of 989 TFLOPS, in the linear layers and in attention
// alike. Others are taken to be like it.
#include "plan/fleet.h"

namespace aquifer {
namespace {

constexpr double kEfficiency = 0.55;
constexpr double kPcie4 = 25e9;  // 16 lanes, as measured.
constexpr double kPcie5 = 55.5e9;

ModelShape Dense(const char* name, double billions, double layers, double heads, double kv_heads,
                 double head_dim) {
  ModelShape shape{.name = name,
                   .parameters = billions * 1e9,
                   .weight_bytes = 2 * billions * 1e9,
                   .layers = layers,
                   .heads = heads,
                   .kv_heads = kv_heads,
                   .head_dim = head_dim};
  shape.Derive(2);
  return shape;
}

}  // namespace

std::span<const GpuKind> GpuPresets() {
  static const GpuKind kinds[] = {
      {"h200", 989, kEfficiency, 141e9, kPcie5, 700, 120, 3.5},
      {"h100", 989, kEfficiency, 80e9, kPcie5, 700, 110, 2.5},
      {"b200", 2250, kEfficiency, 180e9, kPcie5, 1000, 150, 5.0},
      {"a100", 312, kEfficiency, 80e9, kPcie4, 400, 60, 1.5},
      {"l40s", 362, kEfficiency, 48e9, kPcie4, 350, 40, 1.0},
      {"l4", 121, kEfficiency, 24e9, kPcie4, 72, 16, 0.6},
      {"mi300x", 1307, kEfficiency, 192e9, kPcie5, 750, 140, 2.5},
      {"rtx4090", 165, kEfficiency, 24e9, kPcie4, 450, 25, 0.4},
  };
  return kinds;
}

std::span<const ModelShape> ModelPresets() {
  static const ModelShape shapes[] = {
      Dense("llama-3-8b", 8.03, 32, 32, 8, 128),
      Dense("llama-3-70b", 70.6, 80, 64, 8, 128),
      Dense("mistral-7b", 7.25, 32, 32, 8, 128),
      Dense("qwen3-14b", 14.8, 40, 40, 8, 128),
      Dense("qwen3-32b", 32.8, 64, 64, 8, 128),
      // Of 671e9 parameters in fp8 a token goes through 37e9; one latent of 576 values a layer.
      {.name = "deepseek-v3",
       .parameters = 37e9,
       .weight_bytes = 671e9,
       .kv_bytes_per_token = 61.0 * 576 * 2,
       .attention_flops_per_pair = 2.0 * 61 * 128 * (192 + 128)},
  };
  return shapes;
}

}  // namespace aquifer
