// Money: exact texts from the server, shown in the browser's own way. No amount is ever a float here.
// One rule for all of them: half even to the currency's minor unit, as on the invoice. All six decimals are one hover away.

import { el } from "./dom.js";

const MICROS = 1_000_000n;

let currency = "EUR";
let rounded, exact, signed, signedExact;

/** The home's currency, once it is known. */
export function useCurrency(code) {
  currency = code;
  rounded = exact = signed = signedExact = undefined;
}

/** Millionths, from a decimal text. */
export function micros(text) {
  const [, sign, whole, fraction = ""] = /^(-?)(\d+)(?:\.(\d{1,6}))?$/.exec(text);
  const value = BigInt(whole) * MICROS + BigInt(fraction.padEnd(6, "0"));
  return sign ? -value : value;
}

/** A decimal text, from millionths. */
export function decimal(value) {
  const size = value < 0n ? -value : value;
  return `${value < 0n ? "-" : ""}${size / MICROS}.${String(size % MICROS).padStart(6, "0")}`;
}

/** Several texts together, as a text. */
export function sum(texts) {
  return decimal(texts.reduce((total, text) => total + micros(text), 0n));
}

/** One less another, as a text. */
export function less(one, other) {
  return decimal(micros(one) - micros(other));
}

/** In the currency's own digits, as an invoice would round it. */
export function money(text) {
  rounded ??= format({ signDisplay: "negative" });
  return rounded.format(text);
}

/** The same with its sign, for a difference. */
export function difference(text) {
  signed ??= format({ signDisplay: "exceptZero" });
  return signed.format(text);
}

/** All six decimals, as the ledger keeps them. */
export function exactMoney(text) {
  exact ??= format({ minimumFractionDigits: 6, maximumFractionDigits: 6, signDisplay: "negative" });
  return exact.format(text);
}

/** An amount as an element: rounded, with all its decimals where it is pointed at. */
export function amount(text, kind = null) {
  return el("span", { class: kind, title: exactMoney(text) }, money(text));
}

/** The same for a difference. */
export function amountDifference(text) {
  signedExact ??= format({ minimumFractionDigits: 6, maximumFractionDigits: 6, signDisplay: "exceptZero" });
  return el("span", { title: signedExact.format(text) }, difference(text));
}

/** A rounded amount in parts, so that the currency can be drawn lighter. */
export function moneyParts(text) {
  money(text);
  return rounded.formatToParts(text).map(({ type, value }) => ({ text: value, small: type === "currency" ? "currency" : null }));
}

/** Whether rounding took something away. */
export function isFiner(text) {
  money(text);
  return micros(text) % 10n ** BigInt(6 - rounded.resolvedOptions().maximumFractionDigits) !== 0n;
}

/** For axes and bars only, where a pixel is coarser than any rounding. */
export function height(text) {
  return Number(micros(text)) / 1e6;
}

/** A round amount for an axis. */
export function axisMoney(value) {
  return format({ notation: "compact", maximumFractionDigits: value !== 0 && Math.abs(value) < 10 ? 2 : 1, minimumFractionDigits: 0 }).format(value);
}

function format(options) {
  return new Intl.NumberFormat(undefined, { style: "currency", currency, roundingMode: "halfEven", ...options });
}
