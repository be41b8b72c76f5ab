// Requests: what they say, how they arrive, wait and are attached.
#include <fmt/format.h>

#include <algorithm>

#include "sim/world.h"

namespace quire {

std::uint64_t Simulator::change_of(const Live& l, std::uint32_t position) const {
  std::uint64_t change = 0;
  for (const KeyChange& s : l.salts)
    if (s.position == position) change = mix64(change ^ s.value.size());
  return change;
}

// Works out what the request's tokens imply: rows, change digests and keys.
void Simulator::learn(Live& l) {
  const Tree& tree = trees_[l.root];
  l.rows = History(tree.identity);
  l.changes.assign(l.script.size() / kBlock + 1, 0);
  for (std::uint32_t t = 0; t < l.script.size(); ++t) {
    const std::uint64_t change = change_of(l, t);
    l.rows.push(l.script[t], change);
    if (change) l.changes[t / kBlock] = mix64(l.changes[t / kBlock] ^ change ^ t);
  }
  KeyChain chain(secret_, tree.key, kBlock);
  for (const KeyChange& s : l.salts) chain.change(s);
  chain.extend(l.script);
  l.keys.assign(chain.keys().begin(), chain.keys().end());
  if (!truncated_keys_)
    for (std::size_t i = 0; i < l.keys.size(); ++i)
      reference_.learn(l.keys[i], i == 0 ? tree.key.prefix() : l.keys[i - 1].prefix(),
                       std::span(l.script).subspan(i * kBlock, kBlock), l.changes[i]);
  for (std::uint32_t t = l.pure_until; t < l.script.size(); ++t)
    l.rows.set(t, mix64(l.rows.at(t) ^ l.id));
}

void Simulator::arrive() {
  const std::size_t tree = random_.below(trees_.size());
  const std::optional<RootId> root = root_of(tree);
  if (!root) return;
  auto made = std::make_unique<Live>();
  Live& l = *made;
  l.id = next_id_++;
  l.root = tree;
  const std::vector<TokenId>& family = families_[random_.below(families_.size())];
  const std::size_t shared = random_.below(kTokensMax - 12);
  l.script.assign(family.begin(), family.begin() + static_cast<std::ptrdiff_t>(shared));
  l.prompt = static_cast<std::uint32_t>(shared + 1 + random_.below(6));
  l.target = std::min<std::uint32_t>(kTokensMax,
                                     l.prompt + 1 + static_cast<std::uint32_t>(random_.below(12)));
  while (l.script.size() < kTokensMax) l.script.push_back(static_cast<TokenId>(random_.below(3)));
  if (random_.chance(0.25)) {
    const auto position = static_cast<std::uint32_t>(random_.below(l.prompt));
    const ChangeKind kind = position % kBlock == 0 ? ChangeKind::salt : ChangeKind::media;
    l.salts.push_back({position, kind, random_.chance(0.5) ? "red" : "blue"});
  }
  if (random_.chance(0.1)) l.pure_until = static_cast<std::uint32_t>(random_.below(kTokensMax));
  l.own_keys = random_.chance(0.3);
  l.publish = !random_.chance(0.1);
  l.reuse = !random_.chance(0.05);
  learn(l);
  SequenceOptions o;
  o.root = *root;
  o.token_capacity = kTokensMax;
  o.reuse = l.reuse;
  o.publish = l.publish;
  o.publish_generated = !random_.chance(0.1);
  o.inline_keys = !l.own_keys;
  o.priority = static_cast<std::uint8_t>(random_.below(101));
  o.ttl = random_.chance(0.2) ? static_cast<Nanoseconds>(random_.below(50)) * 1'000'000 : 0;
  o.changes = l.salts;
  o.request = l.id;
  l.sequence = std::move(cache_->open(o).value());
  const std::span<const BlockKey> keys =
      std::span(l.keys).first(l.own_keys ? random_.below(l.prompt / kBlock + 1) : 0);
  cache_->place(l.sequence, std::span(l.script).first(l.prompt), keys);
  if (l.pure_until != UINT32_MAX) l.sequence.limit_purity(l.pure_until);
  l.placed = true;
  ++report_.requests;
  live_.push_back(std::move(made));
}

// Keys that were computed elsewhere arrive some time after the tokens are known.
void Simulator::give_keys(Live& l) {
  if (!l.own_keys) return;
  const std::size_t known = l.sequence.tokens().size() / kBlock, have = l.sequence.keys_known();
  if (known <= have) return;
  l.sequence.supply_keys(std::span(l.keys).subspan(have, 1 + random_.below(known - have)));
}

Live* Simulator::pick(bool placed) {
  std::size_t count = 0;
  for (const auto& l : live_) count += l->placed == placed && l->in_steps == 0;
  if (count == 0) return nullptr;
  std::size_t nth = random_.below(count);
  for (const auto& l : live_)
    if (l->placed == placed && l->in_steps == 0 && nth-- == 0) return l.get();
  return nullptr;
}

Live* Simulator::find(std::uint64_t id) {
  for (const auto& l : live_)
    if (l->id == id) return l.get();
  return nullptr;
}

void Simulator::close(Live& l) {
  l.sequence.close();
  std::erase_if(live_, [&](const auto& p) { return p.get() == &l; });
}

void Simulator::check_attached(const Live& l, const Attached& got, std::uint32_t limit) {
  CHECK(got.tokens <= limit);
  if (truncated_keys_) return;
  const Geometry& g = trees_[l.root].geometry;
  const std::uint32_t keys = l.reuse ? l.sequence.keys_known() : 0;
  if (!l.reuse) {
    CHECK(got.tokens == 0);
    return;
  }
  const Reference::Served want =
      reference_.served(g, trees_[l.root].key.prefix(), std::span(l.keys).first(keys),
                        l.sequence.tokens(), l.changes, limit);
  const bool chain_only =
      g.groups.size() == 1 && g.groups[0].window == 0 && g.groups[0].kind != GroupKind::state;
  if (got.tokens > want.best || got.tokens < (chain_only ? want.best : want.whole))
    fmt::print(
        stderr,
        "request {} got {} (partial {}, reason {}), best {} whole {}, limit {} keys {} root {}\n",
        l.id, got.tokens, got.partial, reason_name(got.reason), want.best, want.whole, limit, keys,
        l.root);
  CHECK(got.tokens <= want.best && got.tokens >= want.whole);
  if (chain_only) CHECK(got.tokens == want.best);
}

void Simulator::attach(Live& l) {
  follow_journal();
  const std::uint32_t limit = std::min(std::max(l.prompt - 1, l.computed), l.pure_until);
  const bool parked = l.sequence.length() > 0;
  cache_->poll();  // as attach does: leases end
  const Attached peeked = cache_->peek(l.sequence);
  const Attached got = cache_->attach(l.sequence);
  CHECK(peeked.tokens == got.tokens && l.sequence.length() == got.tokens);
  if (!parked) check_attached(l, got, limit);
  l.placed = false;
  report_.hit_tokens += got.tokens;
  report_.partial_hits += got.partial > 0;
  check_reads(l, got.tokens);
}

void Simulator::admit(bool patient) {
  Live* l = pick(true);
  if (!l) return;
  give_keys(*l);
  if (patient && l->waits < 20 && cache_->peek(l->sequence).in_flight > 0) {
    ++l->waits;
    ++report_.waited;
    return;
  }
  attach(*l);
}

}  // namespace quire
