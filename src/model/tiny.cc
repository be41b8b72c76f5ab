#include "model/tiny.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/half.h"
#include "base/random.h"
#include "model/arch/arch.h"
#include "tensor/gguf_writer.h"

namespace quire {
namespace {

constexpr std::uint32_t kBlock = 32;

void put_u16(std::vector<std::byte>& out, std::uint16_t value) {
  out.push_back(static_cast<std::byte>(value & 0xff));
  out.push_back(static_cast<std::byte>(value >> 8));
}

void encode_q8_0(std::span<const float> block, std::vector<std::byte>& out) {
  float largest = 0;
  for (const float x : block) largest = std::max(largest, std::fabs(x));
  const std::uint16_t scale = f32_to_f16(largest / 127);
  const float step = f16_to_f32(scale);
  put_u16(out, scale);
  for (const float x : block)
    out.push_back(static_cast<std::byte>(static_cast<std::int8_t>(
        step > 0 ? std::clamp(std::nearbyint(x / step), -127.f, 127.f) : 0)));
}

void encode_q4_1(std::span<const float> block, std::vector<std::byte>& out) {
  const auto [low, high] = std::minmax_element(block.begin(), block.end());
  const std::uint16_t scale = f32_to_f16((*high - *low) / 15), minimum = f32_to_f16(*low);
  const float step = f16_to_f32(scale), base = f16_to_f32(minimum);
  put_u16(out, scale);
  put_u16(out, minimum);
  const auto code = [&](float x) {
    return static_cast<std::uint8_t>(
        step > 0 ? std::clamp(std::nearbyint((x - base) / step), 0.f, 15.f) : 0);
  };
  for (std::size_t i = 0; i < kBlock / 2; ++i)
    out.push_back(static_cast<std::byte>(code(block[i]) | code(block[i + kBlock / 2]) << 4));
}

// Plain rounding, block by block. `values` is a whole number of blocks; the caller has checked the
// type.
std::vector<std::byte> encode(DType type, std::span<const float> values) {
  std::vector<std::byte> out;
  out.reserve(row_bytes(type, values.size()));
  const std::size_t unit = dtype_info(type).block_elements;
  for (std::size_t i = 0; i < values.size(); i += unit) {
    const float x = values[i];
    switch (type) {
      case DType::f32: {
        const auto raw = std::as_bytes(std::span(&x, 1));
        out.insert(out.end(), raw.begin(), raw.end());
        break;
      }
      case DType::f16:
        put_u16(out, f32_to_f16(x));
        break;
      case DType::bf16:
        put_u16(out, f32_to_bf16(x));
        break;
      case DType::q8_0:
        encode_q8_0(values.subspan(i, kBlock), out);
        break;
      case DType::q4_1:
        encode_q4_1(values.subspan(i, kBlock), out);
        break;
      default:
        CHECK(false && "a type that tiny_gguf refuses");
    }
  }
  return out;
}

void append_utf8(std::string& out, std::uint32_t c) {  // c < 0x800
  if (c < 0x80)
    out += static_cast<char>(c);
  else
    out += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
}

// Byte-level vocabularies spell bytes as printable characters: most stand for themselves, the
// others for 256 and up.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens(256);
  std::uint32_t next = 256;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
    append_utf8(tokens[b], printable ? b : next++);
  }
  return tokens;
}

class TinyModel {
 public:
  TinyModel(const TinyOptions& options, std::span<const TensorEntry> tensors)
      : o_(options), random_(options.seed) {
    config_.tensors = tensors;
    config_.layers = o_.layers;
    config_.hidden = o_.hidden;
    config_.vocabulary = kTinyVocabulary;
    config_.tied_head = o_.tied_head;
    LayerSpec layer;
    layer.attn = {.query_heads = o_.query_heads,
                  .kv_heads = o_.kv_heads,
                  .key_dim = o_.head_dim,
                  .value_dim = o_.head_dim};
    layer.ffn.width = o_.feed_forward;
    config_.per_layer.assign(o_.layers, layer);
  }

  std::string make() {
    metadata();
    tokenizer();
    for (const std::string& name : tensor_names(config_)) {
      if (o_.rope_factors && name == "blk.0.attn_norm.weight")
        vector("rope_freqs.weight", o_.head_dim / 2, 4, 3);
      const std::vector<std::uint64_t> shape = tensor_shape(config_, *find_tensor(config_, name));
      if (shape.size() == 2)
        matrix(name, shape);
      else if (name.ends_with(".bias"))
        vector(name, shape[0], 0, 0.3);
      else
        vector(name, shape[0], 1, 0.4);
    }
    return writer_.finish();
  }

 private:
  bool is(std::string_view architecture) const { return o_.architecture == architecture; }

  void metadata() {
    const auto key = [&](std::string_view name) {
      return fmt::format("{}.{}", o_.architecture, name);
    };
    writer_.add("general.architecture", o_.architecture);
    writer_.add("general.name", fmt::format("tiny {}", o_.architecture));
    writer_.add_u32(key("block_count"), o_.layers);
    writer_.add_u32(key("context_length"), o_.context);
    writer_.add_u32(key("embedding_length"), o_.hidden);
    writer_.add_u32(key("feed_forward_length"), o_.feed_forward);
    writer_.add_u32(key("attention.head_count"), o_.query_heads);
    writer_.add_u32(key("attention.head_count_kv"), o_.kv_heads);
    writer_.add_u32(key("attention.key_length"), o_.head_dim);
    writer_.add_u32(key("attention.value_length"), o_.head_dim);
    writer_.add_f32(key("attention.layer_norm_rms_epsilon"), 1e-5f);
    writer_.add_f32(key("rope.freq_base"), is("gemma3") ? 1e6f : 1e4f);
    if (o_.rope_linear != 1) {
      writer_.add(key("rope.scaling.type"), "linear");
      writer_.add_f32(key("rope.scaling.factor"), o_.rope_linear);
    }
    const std::uint32_t window = is("gemma3") && o_.window == 0 ? 32 : o_.window;
    if (window) writer_.add_u32(key("attention.sliding_window"), window);
  }

  void tokenizer() {
    std::vector<std::string> tokens = byte_tokens();
    std::vector<std::int32_t> types(tokens.size(), 1);
    for (const std::string_view special : kTinySpecials) {
      tokens.emplace_back(special);
      types.push_back(3);
    }
    writer_.add("tokenizer.ggml.model", "gpt2");
    writer_.add("tokenizer.ggml.pre", "gpt-2");
    writer_.add_strings("tokenizer.ggml.tokens", tokens);
    writer_.add_i32s("tokenizer.ggml.token_type", types);
    writer_.add_strings("tokenizer.ggml.merges", {});
    writer_.add_u32("tokenizer.ggml.bos_token_id", 256);
    writer_.add_u32("tokenizer.ggml.eos_token_id", 257);
    writer_.add_bool("tokenizer.ggml.add_bos_token", false);
    writer_.add("tokenizer.chat_template",
                "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] "
                "}}<|eos|>{% endfor %}"
                "{% if add_generation_prompt %}<|assistant|>{% endif %}");
  }

  // Uniform numbers around `mean`: no library function whose last bit depends on the machine.
  std::vector<float> numbers(std::size_t count, double mean, double spread) {
    std::vector<float> values(count);
    for (float& v : values) v = static_cast<float>(mean + spread * (2 * random_.unit() - 1));
    return values;
  }

  void matrix(const std::string& name, std::span<const std::uint64_t> shape) {
    const double spread = 2.5 / std::sqrt(static_cast<double>(shape[1]));
    std::vector<float> values = numbers(shape[0] * shape[1], 0, spread);
    if (o_.broken && name == "token_embd.weight")
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(7 * shape[1]), shape[1],
                  std::numeric_limits<float>::quiet_NaN());
    writer_.add_tensor(name, o_.type, shape, encode(o_.type, values));
  }
  void vector(const std::string& name, std::uint64_t count, double mean, double spread) {
    writer_.add_tensor(name, DType::f32, {&count, 1},
                       encode(DType::f32, numbers(count, mean, spread)));
  }

  const TinyOptions& o_;
  ModelConfig config_;  // as far as tensors depend on it
  Random random_;
  GgufWriter writer_;
};

}  // namespace

Result<std::string> tiny_gguf(const TinyOptions& o) {
  constexpr std::array kTypes = {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_1};
  if (std::find(kTypes.begin(), kTypes.end(), o.type) == kTypes.end())
    return Error{Code::invalid,
                 fmt::format("tiny models are not made in type {}", dtype_info(o.type).name)};
  for (const std::uint32_t columns : {o.hidden, o.feed_forward, o.query_heads * o.head_dim})
    if (columns == 0 || columns % dtype_info(o.type).block_elements != 0)
      return Error{Code::invalid, fmt::format("a tiny model in type {} has no rows of {}",
                                              dtype_info(o.type).name, columns)};
  const auto found = std::ranges::find(architectures(), o.architecture, &Architecture::name);
  if (found == architectures().end())
    return Error{Code::invalid, fmt::format("no architecture '{}'", o.architecture)};
  return TinyModel(o, (*found)->tensors).make();
}

Status write_tiny_gguf(const std::string& path, const TinyOptions& options) {
  TRY(const std::string bytes, tiny_gguf(options));
  return write_file(path, bytes);
}

}  // namespace quire
