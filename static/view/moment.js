/** A moment as an element: the time of day, and the whole of it as its tooltip. */

import { h } from "./dom.js";
import { dayAndTime, timeOfDay } from "./format.js";

/** @param {number} time milliseconds since 1970 */
export function timeElement(time) {
  return h("time", { datetime: new Date(time).toISOString(), title: dayAndTime(time) }, timeOfDay(time));
}
