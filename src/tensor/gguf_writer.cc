#include "tensor/gguf_writer.h"

#include <cstring>

namespace quire {
namespace {

constexpr std::size_t kAlignment = 32;

template <class T>
void put(std::string& out, T value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  out.append(raw, sizeof value);
}

void put_text(std::string& out, std::string_view text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}

void pad(std::string& out) { out.resize((out.size() + kAlignment - 1) / kAlignment * kAlignment); }

template <class T>
void put_array(std::string& out, GgufType element, std::span<const T> values) {
  put(out, element);
  put<std::uint64_t>(out, values.size());
  for (const T& value : values) put(out, value);
}

}  // namespace

void GgufWriter::begin(std::string_view key, GgufType type) {
  ++entry_count_;
  put_text(entries_, key);
  put(entries_, type);
}

void GgufWriter::add(std::string_view key, std::string_view text) {
  begin(key, GgufType::string);
  put_text(entries_, text);
}

void GgufWriter::add_u32(std::string_view key, std::uint32_t value) {
  begin(key, GgufType::u32);
  put(entries_, value);
}

void GgufWriter::add_f32(std::string_view key, float value) {
  begin(key, GgufType::f32);
  put(entries_, value);
}

void GgufWriter::add_bool(std::string_view key, bool value) {
  begin(key, GgufType::boolean);
  put<std::uint8_t>(entries_, value);
}

void GgufWriter::add_strings(std::string_view key, std::span<const std::string> values) {
  begin(key, GgufType::array);
  put(entries_, GgufType::string);
  put<std::uint64_t>(entries_, values.size());
  for (const std::string& value : values) put_text(entries_, value);
}

void GgufWriter::add_i32s(std::string_view key, std::span<const std::int32_t> values) {
  begin(key, GgufType::array);
  put_array(entries_, GgufType::i32, values);
}

void GgufWriter::add_f32s(std::string_view key, std::span<const float> values) {
  begin(key, GgufType::array);
  put_array(entries_, GgufType::f32, values);
}

void GgufWriter::add_tensor(std::string_view name, DType type, std::span<const std::uint64_t> shape,
                            std::span<const std::byte> data) {
  ++tensor_count_;
  put_text(infos_, name);
  put<std::uint32_t>(infos_, static_cast<std::uint32_t>(shape.size()));
  for (std::size_t i = shape.size(); i-- > 0;) put(infos_, shape[i]);
  put(infos_, dtype_info(type).gguf_id);
  pad(data_);
  put<std::uint64_t>(infos_, data_.size());
  data_.append(reinterpret_cast<const char*>(data.data()), data.size());
}

std::string GgufWriter::finish(std::uint32_t version) const {
  std::string file = "GGUF";
  put(file, version);
  put(file, tensor_count_);
  put(file, entry_count_);
  file += entries_ + infos_;
  pad(file);
  return file + data_;
}

}  // namespace quire
